//! Archives by hand, hostile and odd ones, and what must come of each.

/// A header by hand, with `data` behind it; `size` may lie.
pub(crate) fn member(name: &[u8], kind: u8, link: &str, size: u64, data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(1);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub(crate) fn file(name: &str, data: &str) -> Vec<u8> {
    member(name.as_bytes(), b'0', "", data.len() as u64, data.as_bytes())
}

pub(crate) fn link(name: &str, kind: u8, target: &str) -> Vec<u8> {
    member(name.as_bytes(), kind, target, 0, b"")
}

pub(crate) fn folder(name: &str) -> Vec<u8> {
    member(name.as_bytes(), b'5', "", 0, b"")
}

/// A PAX header of these records.
pub(crate) fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in records {
        let mut len = key.len() + value.len() + 3;
        while len != key.len() + value.len() + 3 + len.to_string().len() {
            len = key.len() + value.len() + 3 + len.to_string().len();
        }
        text.extend_from_slice(format!("{len} {key}=").as_bytes());
        text.extend_from_slice(value);
        text.push(b'\n');
    }
    member(b"pax", b'x', "", text.len() as u64, &text)
}

/// Of a GNU sparse member the bytes of its map, at 386 of the header.
pub(crate) fn old_sparse(map: &[(u64, u64)], real: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = member(b"sparse", b'S', "", data.len() as u64, data);
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&bytes[..512]);
    let gnu = header.as_gnu_mut().unwrap();
    for (entry, (offset, len)) in gnu.sparse.iter_mut().zip(map) {
        entry.offset.copy_from_slice(format!("{offset:011o}\0").as_bytes());
        entry.numbytes.copy_from_slice(format!("{len:011o}\0").as_bytes());
    }
    gnu.realsize.copy_from_slice(format!("{real:011o}\0").as_bytes());
    header.set_cksum();
    bytes[..512].copy_from_slice(header.as_bytes());
    bytes
}

/// Expected result of an archive: the files named with their content, or a failure with this text.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) archive: Vec<Vec<u8>>,
    pub(crate) expect: Result<&'static [(&'static str, &'static str)], &'static str>,
}

pub(crate) fn case(
    name: &'static str,
    archive: Vec<Vec<u8>>,
    expect: Result<&'static [(&'static str, &'static str)], &'static str>,
) -> Case {
    Case { name, archive, expect }
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn cases() -> Vec<Case> {
    const OUT: &str = "would lead out of the volume";
    const LINK: &str = "behind a link that leads out of the volume";
    let long = |kind: u8, text: &[u8]| member(b"././@LongLink", kind, "", text.len() as u64, text);
    vec![
        case(
            "absolute names",
            vec![file("/abs", "a"), file("//x/./y", "b")],
            Ok(&[("abs", "a"), ("x/y", "b")]),
        ),
        case("names that climb", vec![file("../escaped", "a")], Err(OUT)),
        case("names that climb later", vec![file("a/b/../../../escaped", "a")], Err(OUT)),
        case("a long name that climbs", vec![long(b'L', b"a/../../escaped\0"), file("x", "a")], Err(OUT)),
        case("a PAX name that climbs", vec![pax(&[("path", b"../escaped")]), file("x", "a")], Err(OUT)),
        case(
            "a PAX name with NUL",
            vec![pax(&[("path", b"a\0b")]), file("x", "a")],
            Err("has a NUL in its name"),
        ),
        case(
            "a sparse name that climbs",
            vec![pax(&[("GNU.sparse.name", b"../escaped")]), file("x", "a")],
            Err(OUT),
        ),
        case("through a link up", vec![link("up", b'2', ".."), file("up/escaped", "a")], Err(LINK)),
        case("through an absolute link", vec![link("l", b'2', "/tmp"), file("l/escaped", "a")], Err(LINK)),
        case("a folder through a link", vec![link("l", b'2', ".."), folder("l/escaped")], Err(LINK)),
        case(
            "through a chain of links",
            vec![folder("d"), link("d/a", b'2', ".."), link("b", b'2', "d/a/.."), file("b/escaped", "a")],
            Err(LINK),
        ),
        case("a loop of links", vec![link("a", b'2', "b"), link("b", b'2', "a"), file("a/x", "a")], Err("")),
        case(
            "through a link inside",
            vec![folder("usr"), link("lib", b'2', "usr"), file("lib/x", "a")],
            Ok(&[("usr/x", "a"), ("lib/x", "a")]),
        ),
        case("onto a link", vec![link("f", b'2', "../outside"), file("f", "a")], Ok(&[("f", "a")])),
        case(
            "a folder onto a link",
            vec![link("f", b'2', ".."), folder("f"), file("f/x", "a")],
            Ok(&[("f/x", "a")]),
        ),
        case("hard link to a file outside", vec![link("h", b'1', "../outside")], Err(OUT)),
        case("hard link to an absolute name", vec![link("h", b'1', "/etc/hostname")], Err("")),
        case(
            "hard link to a link",
            vec![link("l", b'2', "../outside"), link("h", b'1', "l"), file("h", "a")],
            Ok(&[("h", "a")]),
        ),
        case(
            "hard link through a link",
            vec![link("l", b'2', ".."), link("h", b'1', "l/outside")],
            Err(LINK),
        ),
        case(
            "hard link",
            vec![file("a", "x"), link("b", b'1', "a"), link("b", b'1', "b")],
            Ok(&[("a", "x"), ("b", "x")]),
        ),
        case(
            "a hard link is replaced, not written through",
            vec![file("a", "x"), link("b", b'1', "/a"), file("b", "y")],
            Ok(&[("a", "x"), ("b", "y")]),
        ),
        case(
            "a hard link to a missing file",
            vec![link("h", b'1', "none")],
            Err("member h is a hard link to none, which does not precede it"),
        ),
        case("links in a circle", vec![link("l", b'2', "l"), file("l/f", "x")], Err("or in a circle")),
        case("a link without a target", vec![link("l", b'2', "")], Err("a link without a target")),
        case("a character device", vec![link("null", b'3', "")], Err("is a device")),
        case("a block device", vec![link("sda", b'4', "")], Err("is a device")),
        case("the same name twice", vec![file("a", "x"), file("a", "yy")], Ok(&[("a", "yy")])),
        case(
            "a file becomes a folder",
            vec![file("a", "x"), folder("a/"), file("a/b", "y")],
            Ok(&[("a/b", "y")]),
        ),
        case("a folder becomes a file", vec![folder("a"), file("a", "x")], Ok(&[("a", "x")])),
        case("a full folder does not", vec![file("a/b", "x"), file("a", "x")], Err("unpacking a")),
        case("a file is no folder", vec![file("a", "x"), file("a/b", "y")], Err("unpacking a/b")),
        case("the volume itself", vec![folder("./"), file("./a", "x")], Ok(&[("a", "x")])),
        case("no UTF-8", vec![member(b"\xff\xfe", b'0', "", 1, b"x")], Ok(&[])),
        case(
            "an unknown type is a file",
            vec![member(b"a", b'7', "", 1, b"x"), member(b"b", b'Z', "", 1, b"y")],
            Ok(&[("a", "x"), ("b", "y")]),
        ),
        case(
            "a long name",
            vec![long(b'L', &[b"d/".repeat(120), b"f\0".to_vec()].concat()), file("x", "a")],
            Ok(&[]),
        ),
        case(
            "a part that is too long",
            vec![long(b'L', &b"n".repeat(256)), file("x", "a")],
            Err("unpacking nnn"),
        ),
        case(
            "a path that is too long",
            vec![long(b'L', &b"n/".repeat(20_000)), file("x", "a")],
            Err("unpacking n/n"),
        ),
        case(
            "a name of a gigabyte",
            vec![member(b"x", b'L', "", 1 << 30, b"n")],
            Err("a name or header of 1073741824 bytes"),
        ),
        case(
            "a link of a gigabyte",
            vec![member(b"x", b'K', "", 1 << 30, b"n")],
            Err("a name or header of 1073741824 bytes"),
        ),
        case(
            "a PAX header of eight exabytes",
            vec![member(b"x", b'x', "", u64::MAX / 2, b"n")],
            Err("a name or header of"),
        ),
        case("names without a member", vec![long(b'L', b"name\0")], Err("truncated")),
        case(
            "names without end",
            vec![long(b'L', b"name\0").repeat(100), file("x", "a")],
            Err("describes a member that is missing"),
        ),
        case("a huge size", vec![member(b"x", b'0', "", u64::MAX, b"n")], Err("truncated")),
        case(
            "a huge PAX size",
            vec![pax(&[("size", b"18446744073709551615")]), file("x", "a")],
            Err("truncated"),
        ),
        case("a PAX size that is none", vec![pax(&[("size", b"-1")]), file("x", "a")], Err("is no number")),
        case(
            "a PAX size that overrides",
            vec![pax(&[("size", b"3")]), member(b"x", b'0', "", 0, b"abc")],
            Ok(&[("x", "abc")]),
        ),
        case(
            "a PAX header that is none",
            vec![member(b"x", b'x', "", 4, b"9999"), file("x", "a")],
            Err("a PAX header is invalid"),
        ),
        case(
            "a time that is none",
            vec![pax(&[("mtime", b"now")]), file("x", "a")],
            Err("a time is no number"),
        ),
        case(
            "a time far away",
            vec![pax(&[("mtime", b"-99999999999.5")]), file("x", "a")],
            Ok(&[("x", "a")]),
        ),
        case("a truncated member", vec![member(b"x", b'0', "", 5000, b"n")], Err("truncated")),
        case(
            "a truncated archive between members",
            vec![file("x", "a"), file("y", "b")],
            Err("behind y without an end mark"),
        ),
        case("a truncated header", vec![file("x", "a"), vec![1; 100]], Err("truncated")),
        case(
            "garbage behind a member",
            vec![file("x", "a"), vec![1; 512]],
            Err("the checksum of a header is wrong"),
        ),
        case("sparse", vec![old_sparse(&[(1024, 3)], 2000, b"abc")], Ok(&[])),
        case(
            "sparse, out of order",
            vec![old_sparse(&[(1024, 1), (0, 2)], 2000, b"abc")],
            Err("out of order"),
        ),
        case(
            "sparse, past its end",
            vec![old_sparse(&[(1999, 3)], 2000, b"abc")],
            Err("does not fit its data"),
        ),
        case("sparse, less data", vec![old_sparse(&[(0, 3)], 2000, b"a")], Err("does not fit its data")),
        case("sparse, more data", vec![old_sparse(&[(0, 3)], 2000, b"abcd")], Err("does not fit its data")),
        case(
            "PAX sparse, out of order",
            vec![pax(&[("GNU.sparse.size", b"100"), ("GNU.sparse.map", b"5,1,0,1")]), file("x", "ab")],
            Err("out of order"),
        ),
        case(
            "PAX sparse, odd",
            vec![pax(&[("GNU.sparse.size", b"100"), ("GNU.sparse.map", b"5,1,9")]), file("x", "ab")],
            Err("map of a sparse file is invalid"),
        ),
        case(
            "PAX sparse, larger than any file",
            vec![
                pax(&[("GNU.sparse.size", b"18446744073709551615"), ("GNU.sparse.map", b"0,1")]),
                file("x", "a"),
            ],
            Err("unpacking x"),
        ),
        case(
            "PAX sparse 1.0, endless map",
            vec![
                pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9")]),
                file("x", "99999999999\n0\n0\n"),
            ],
            Err("a member is longer than its data"),
        ),
        case("one volume of several", vec![link("x", b'M', "")], Err("one volume of several")),
        case("nothing", vec![], Err("not a tar archive, or an empty one")),
    ]
}
