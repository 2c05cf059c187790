"""The XML room door: what is refused, what is overlooked, where. Entity attacks are those that defusedxml's documentation lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers.source import source_of
from pcie_sim.importers.xml_safe import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NODES,
    bit_ranges,
    mask_bits,
    parse_xml,
    root_of,
    walk,
)


def tags(text: str) -> list[str]:
    return [node.tag for node in walk(parse_xml(source_of(text, "f.xml"), "a thing").root)]


def test_nodes_carry_lines_and_attributes_and_order() -> None:
    text = "<?xml version='1.0'?>\n<!-- a\ncomment -->\n<a x='1' y=\"  Shanghai  \">\n  <b/><c></c>\n  <b z='2'/></a>\n"
    root = parse_xml(source_of(text, "f.xml"), "a thing").root
    assert (root.tag, root.line, root.attrs) == ("a", 4, {"x": "1", "y": "Shanghai"})
    assert [(child.tag, child.line) for child in root.children] == [("b", 5), ("c", 5), ("b", 6)]
    assert root.get("nothing") == ""
    assert [node.get("z") for node in root.each("b")] == ["", "2"]


@pytest.mark.parametrize(
    "head",
    [
        "",
        "\ufeff",
        "\n\n   ",
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE a SYSTEM "hwloc2.dtd">\n',
        "<!-- Copyright\n " + "licence " * 100 + "-->\n<!---->\n",
        "```xml\n",
        "$ cat topo.xml\n",
    ],
)
def test_the_root_is_found_behind_harmless_heads(head: str) -> None:
    source = source_of(head + "<a><b/></a>\n", "f.xml")
    assert root_of(source) == ("a", head.count("\n") + 1)
    document = parse_xml(source, "a thing")
    assert document.root.line == head.count("\n") + 1
    assert all("topo.xml" not in remark.text for remark in document.remarks)  # a prompt names user and host: not quoted


@pytest.mark.parametrize(
    "text", ["plain text", "{}", "< a/>", "<1/>", "one\ntwo\nthree\n<a/>", "<!-- never closed", "<?xml", "<!DOCTYPE a", "<"]
)
def test_what_is_no_xml_has_no_root(text: str) -> None:
    assert root_of(source_of(text, "f.xml")) is None


def test_what_follows_the_root_is_overlooked_and_said() -> None:
    document = parse_xml(source_of("<a>\n</a>\n```\nthanks, all\n", "f.xml"), "a thing")
    assert document.root.tag == "a"
    [remark] = document.remarks
    assert (remark.kind, remark.line) == ("ignored", 4)


def test_colours_of_a_terminal_are_overlooked() -> None:
    assert tags("\x1b[32m<a>\x1b[0m<b/></a>") == ["a", "b"]


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "lol"}">' for i in range(10))


@pytest.mark.parametrize(
    "text",
    [
        f"<!DOCTYPE a [{LAUGHS}]><a>&l9;</a>",
        f"<!DOCTYPE a [{LAUGHS}]><a x='&l9;'/>",
        '<!DOCTYPE a [<!ENTITY x "' + "x" * 100_000 + '">]><a>' + "&x;" * 10_000 + "</a>",
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x.dtd">%x;]><a/>',
        '<!DOCTYPE a [<!ATTLIST b c CDATA "' + "x" * 100_000 + '">]><a>' + "<b/>" * 1000 + "</a>",
    ],
)
def test_declarations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^f\.xml:1: the DOCTYPE holds declarations"):
        tags(text)


def test_a_doctype_that_names_a_file_is_not_fetched() -> None:
    assert tags('<!DOCTYPE a SYSTEM "http://127.0.0.1:1/never.dtd"><a/>') == ["a"]
    with pytest.raises(InputError, match=r"^f\.xml:1: .*undefined entity"):
        tags('<!DOCTYPE a SYSTEM "http://127.0.0.1:1/never.dtd"><a>&x;</a>')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a>\n<b>\n<c/>\n", r"f\.xml:4: the file ends inside <b> \(line 2\): it is cut; copy a thing again"),
        ("<a>\n<b x='1", r"f\.xml:2: the file ends inside <a> \(line 1\): it is cut"),
        ("<a>\n</b>", r"f\.xml:2: XML is broken inside <a> \(line 1\): mismatched tag"),
        ("<a x='1' x='2'/>", r"f\.xml:1: XML is broken: duplicate attribute"),
        ("<a>\n<b & c/></a>", r"f\.xml:2: XML is broken inside <a>"),
        ("<a x=1/>", r"f\.xml:1: XML is broken"),
        ("<a>&#0;</a>", r"f\.xml:1: XML is broken"),
        ("not XML at all, said at some length", r"f\.xml:1: does not begin like a thing in XML"),
        ("<a>" * (MAX_DEPTH + 1), rf"f\.xml:1: XML nested deeper than {MAX_DEPTH} levels"),
        ("<a>" + "<b/>" * MAX_NODES + "</a>", r"f\.xml:1: more than 200,000 XML elements"),
        ("<a " + " ".join(f"b{i}=''" for i in range(65)) + "/>", r"f\.xml:1: <a> has 65 attributes"),
        ("<a>" + " " * MAX_CHARACTERS + "</a>", r"f\.xml: larger than 8 MiB"),
    ],
)
def test_broken_and_oversized_files_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tags(text)
    assert str(caught.value).count("\n") < 2


def test_long_values_are_left_out_and_said() -> None:
    document = parse_xml(source_of("<a>\n<b x='" + "f" * 5000 + "' y='1'/></a>", "f.xml"), "a thing")
    assert document.root.children[0].attrs == {"y": "1"}
    assert [(remark.kind, remark.line) for remark in document.remarks] == [("ignored", 2)]


@given(st.integers(min_value=0, max_value=2**200 - 1))
def test_masks_and_ranges_hold_the_same_cpus(bits: int) -> None:
    text = ",".join(f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(192, -1, -32))
    assert mask_bits(text) == bits
    cpus = {cpu for low, high in bit_ranges(bits) for cpu in range(low, high + 1)}
    assert cpus == {cpu for cpu in range(200) if bits >> cpu & 1}


@given(st.text(alphabet="<>/ab!-?'\"=&;[]# \n", max_size=80) | st.text(max_size=40))
def test_only_input_errors_leave(text: str) -> None:
    if not text.strip():
        return
    source = source_of(text, "f.xml")
    root_of(source)
    message = "f.xml"
    try:
        parse_xml(source, "a thing")
    except InputError as exc:
        message = str(exc)
    assert message.startswith("f.xml")
