"""Opens a page once, before the bake: what the browser needs to start is in memory then."""
import asyncio

from playwright.async_api import async_playwright


async def main():
    async with async_playwright() as p:
        browser = await p.chromium.launch()
        page = await browser.new_page()
        await page.set_content("<title>warm</title><h1>Ää 中 😀</h1>")
        assert await page.title() == "warm"
        assert (await page.screenshot()).startswith(b"\x89PNG")
        await browser.close()

asyncio.run(main())
