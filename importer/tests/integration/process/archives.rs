//! Archives that become folders.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::place::{MIB, Place, assert_exit, disk_bytes, gzip, piped, run};
use crate::support::{importer, text};

#[test]
fn archives_are_unpacked() {
    let place = Place::new();
    fs::create_dir(place.path("in")).unwrap();
    fs::write(place.path("in/a"), "first").unwrap();
    fs::create_dir(place.path("in/sub")).unwrap();
    fs::write(place.path("in/sub/b"), disk_bytes(MIB)).unwrap();
    let tar = place.text("files.tar");
    let status =
        Command::new("tar").args(["-cf", &tar, "-C"]).arg(place.path("in")).arg(".").status().unwrap();
    assert!(status.success());
    let packed = place.write("files.tar.gz", &gzip(&fs::read(&tar).unwrap()));
    for (source, target) in [(&tar, "out"), (&packed, "packed")] {
        assert_exit(&run(&[source, &place.text(target), "--archive"]), 0);
        assert_eq!(fs::read(place.path(target).join("a")).unwrap(), b"first");
        assert_eq!(fs::read(place.path(target).join("sub/b")).unwrap(), disk_bytes(MIB));
    }
    let output = importer()
        .args(["-", &place.text("piped"), "--archive"])
        .stdin(piped(Path::new(&packed)))
        .output()
        .unwrap();
    assert_exit(&output, 0);
    assert_eq!(place.names("piped"), ["a", "sub"]);
    // As a disk it is refused.
    assert_exit(&run(&[&tar, &place.text("disk")]), 4);
    // Something else than a tar is no archive.
    let raw = place.write("raw", &disk_bytes(MIB));
    assert_ne!(run(&[&raw, &place.text("none"), "--archive"]).status.code(), Some(0));
}

/// A writer that fails between two members leaves an archive that GNU tar reads without a warning.
#[test]
fn an_archive_without_its_end_mark_is_refused() {
    let place = Place::new();
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["a", "b"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &b"text"[..]).unwrap();
    }
    let bytes = tar.into_inner().unwrap();
    assert_eq!(bytes.len(), 6 * 512);
    for (blocks, code, words) in [
        (2, 4, "behind a without an end mark"),
        (3, 4, "the archive is truncated"),
        (4, 4, "behind b without an end mark"),
        (5, 0, ""),
        (6, 0, ""),
    ] {
        let cut = &bytes[..blocks * 512];
        for (packing, content) in [("tar", cut.to_vec()), ("tar.gz", gzip(cut))] {
            let source = place.write(&format!("{blocks}.{packing}"), &content);
            let ran = run(&[&source, &place.text(&format!("{packing}{blocks}")), "--archive"]);
            assert_exit(&ran, code);
            assert!(text(&ran.stderr).contains(words), "{blocks} {packing}: {}", text(&ran.stderr));
        }
    }
    // Packed, and cut in its packing.
    let packed = gzip(&bytes);
    let source = place.write("cut.tar.gz", &packed[..packed.len() - 12]);
    assert_exit(&run(&[&source, &place.text("cut"), "--archive"]), 4);
}

#[test]
fn archives_go_into_empty_folders() {
    let place = Place::new();
    let pack = |name: &str, files: &[(&str, &[u8])]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        place.write(name, &tar.into_inner().unwrap())
    };
    let source = pack("files.tar", &[("a", b"theirs"), ("b", b"new")]);
    let refused = |folder: &str, source: &str, holds: &str| {
        let ran = run(&[source, folder, "--archive"]);
        assert_exit(&ran, 7);
        let said = text(&ran.stderr);
        assert!(said.contains(&format!("it holds {holds}")) && said.contains("--force"), "{said}");
    };
    for kept in ["a", "other", ".hidden"] {
        let folder = format!("with{kept}");
        fs::create_dir(place.path(&folder)).unwrap();
        fs::write(place.path(&folder).join(kept), "mine").unwrap();
        refused(&place.text(&folder), &source, kept);
        assert_eq!(place.names(&folder), [kept]);
        assert_eq!(fs::read(place.path(&folder).join(kept)).unwrap(), b"mine");
    }
    // The archive in the folder that it is to be unpacked into.
    fs::create_dir(place.path("own")).unwrap();
    let inside = pack("own/files.tar", &[("files.tar", b"gone"), ("b", b"new")]);
    let before = fs::read(&inside).unwrap();
    refused(&place.text("own"), &inside, "files.tar");
    assert_eq!(fs::read(&inside).unwrap(), before);

    assert_exit(&run(&[&source, &place.text("witha"), "--archive", "--force"]), 0);
    assert_eq!(fs::read(place.path("witha/a")).unwrap(), b"theirs");
    fs::create_dir_all(place.path("fresh/lost+found")).unwrap();
    assert_exit(&run(&[&source, &place.text("fresh"), "--archive"]), 0);
    assert_eq!(place.names("fresh"), ["a", "b", "lost+found"]);
}

#[test]
fn archives_stay_in_their_folder() {
    let place = Place::new();
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &[u8], kind: tar::EntryType, link: Option<&str>, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if let Some(link) = link {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    };
    add(b"good", tar::EntryType::Regular, None, b"good");
    add(b"../escaped", tar::EntryType::Regular, None, b"bad");
    add(b"up", tar::EntryType::Symlink, Some(".."), b"");
    add(b"up/escaped", tar::EntryType::Regular, None, b"bad");
    let source = place.write("evil.tar", &tar.into_inner().unwrap());
    drop(run(&[&source, &place.text("out"), "--archive"]));
    assert!(!place.path("escaped").exists());
    assert_eq!(fs::read(place.path("out/good")).unwrap(), b"good");
}
