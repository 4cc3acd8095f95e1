"""PDF files for tests, made by hand and by pypdf."""

from __future__ import annotations

import io

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(*pages: str, title: str | None = None, password: str | None = None, compressed: bytes | None = None) -> bytes:
    """
    A PDF with one line of text a page.

    Args:
        *pages (`str`):
            The lines.
        title (`str`, *optional*):
            In its metadata.
        password (`str`, *optional*):
            What it is encrypted with.
        compressed (`bytes`, *optional*):
            Commands that stand in each page's stream before the text, all of it compressed.
    """
    writer = PdfWriter()
    font = DictionaryObject({NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1")})
    font[NameObject("/BaseFont")] = NameObject("/Helvetica")
    for line in pages:
        page = writer.add_blank_page(200, 200)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        stream = DecodedStreamObject()
        stream.set_data((compressed or b"") + f"BT /F1 12 Tf 10 100 Td ({line}) Tj ET".encode())
        page[NameObject("/Contents")] = stream if compressed is None else stream.flate_encode()
    if title is not None:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()
