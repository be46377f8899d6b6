"""A code interpreter: cells in, tables, pictures and data out."""
from pathlib import Path

from pandastack import Sandbox

SALES = """month,region,revenue
2026-01,north,120
2026-01,south,80
2026-02,north,150
2026-02,south,95
2026-03,north,135
2026-03,south,130
"""
PLOT = """
table = df.pivot(index="month", columns="region", values="revenue")
for region in table:
    plt.plot(table.index, table[region], marker="o", label=region)
plt.title("Revenue by region")
plt.xlabel("month")
plt.ylabel("revenue (k€)")
plt.legend()
plt.show()
"""


def main():
    with Sandbox.create(template="code-interpreter", ttl_seconds=600) as sandbox, sandbox.create_code_context() as context:
        sandbox.filesystem.write("/workspace/sales.csv", SALES)

        # Variables stay from cell to cell. The value of a cell's last line comes in every form it has: a table as text and as HTML.
        cell = context.run_code("import pandas as pd, matplotlib.pyplot as plt\ndf = pd.read_csv('/workspace/sales.csv')\ndf.describe()")
        print(cell.text)
        Path("table.html").write_text(cell.html)

        # Output streams while the cell runs; so do figures.
        cell = context.run_code(PLOT, on_stdout=print, on_result=lambda result: print("shown:", ", ".join(result.formats())))
        Path("revenue.png").write_bytes(cell.png)

        # The figure is data, too: for a model that cannot see, or a page that draws its own charts.
        chart = cell.chart
        print(f"{chart.type} chart '{chart.title}', y in {chart.y_unit}")
        for line in chart.elements:
            print(f"  {line.label}: {line.points}")

        # An exception is an answer, not an exception of ours.
        cell = context.run_code("df['profit'].sum()")
        print(f"{cell.error.name}: {cell.error.value}")

        # A cell that takes too long is stopped; the variables are still there.
        cell = context.run_code("while True: pass", timeout_seconds=1)
        print("timed out:", cell.timed_out, "| rows:", context.run_code("len(df)").text)


if __name__ == "__main__":
    main()
