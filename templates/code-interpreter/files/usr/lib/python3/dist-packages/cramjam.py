"""As much of cramjam as fastparquet uses, over codecs that Debian 12 has.

Not the real one, which is written in Rust and is not in Debian 12. `pip install cramjam` puts that in front of this.
"""
import gzip as _gzip
import types as _types

__version__ = "0+panda"


def _into(decompress):
    def decompress_into(data, output):
        data = decompress(data)
        memoryview(output).cast("B")[:len(data)] = data
        return len(data)
    return decompress_into


def _codec(compress, decompress, **more):
    return _types.SimpleNamespace(compress=compress, decompress=decompress, decompress_into=_into(decompress), **more)


def _gzip_compress(data, level=6):
    return _gzip.compress(bytes(data), compresslevel=level, mtime=0)


gzip = _codec(_gzip_compress, lambda data, output_len=None: _gzip.decompress(bytes(data)))


def _snappy_compress(data):
    import snappy
    return snappy.compress(bytes(data))


def _snappy_decompress(data, output_len=None):
    import snappy
    return snappy.uncompress(bytes(data))


snappy = _types.SimpleNamespace(compress_raw=_snappy_compress, decompress_raw=_snappy_decompress,
                                decompress_raw_into=_into(_snappy_decompress))


def _brotli_compress(data, level=11):
    import brotli
    return brotli.compress(bytes(data), quality=level)


def _brotli_decompress(data, output_len=None):
    import brotli
    return brotli.decompress(bytes(data))


brotli = _codec(_brotli_compress, _brotli_decompress)


def _zstd_compress(data, level=3):
    import zstandard
    return zstandard.ZstdCompressor(level=level).compress(bytes(data))


def _zstd_decompress(data, output_len=None):
    import zstandard
    return zstandard.ZstdDecompressor().decompressobj().decompress(bytes(data))


zstd = _codec(_zstd_compress, _zstd_decompress)


def _lz4_compress(data, store_size=True, **_):
    import lz4.block
    return lz4.block.compress(bytes(data), store_size=store_size)


def _lz4_decompress(data, output_len=None):
    import lz4.block
    return lz4.block.decompress(bytes(data), uncompressed_size=output_len if output_len is not None else -1)


lz4 = _types.SimpleNamespace(compress_block=_lz4_compress, decompress_block=_lz4_decompress)
