//! Small CDs, read back by xorriso (Rock Ridge) and 7-Zip (Joliet).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use api::launch::{MediaFile, Medium};
use api::resource::Confidential;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use virt_launcher::{IsoError, iso};

type Files = BTreeMap<String, Vec<u8>>;

fn medium(label: &str, files: &Files) -> Medium {
    let file = |(path, content): (&String, &Vec<u8>)| MediaFile {
        path: path.clone(),
        content: Confidential(STANDARD.encode(content)),
    };
    Medium { name: "m".to_owned(), label: label.to_owned(), files: files.iter().map(file).collect() }
}

/// All files below a folder.
fn below(folder: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error} (make deps)"));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    said
}

/// Compares the content that the judges read from a CD with the content written.
fn is_read_back(label: &str, files: &Files) {
    let image = iso(&medium(label, files)).unwrap();
    assert_eq!(image.len() % 2048, 0);
    assert_eq!(image, iso(&medium(label, files)).unwrap(), "the same bytes");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.iso");
    fs::write(&file, &image).unwrap();
    let file = file.to_str().unwrap();
    let rock = folder.path().join("rock");
    let said = run("xorriso", &["-osirrox", "on", "-indev", file, "-extract", "/", rock.to_str().unwrap()]);
    assert!(said.contains(&format!("'{label}'")) || said.contains(label), "{said}");
    assert_eq!(below(&rock), *files, "Rock Ridge");
    let joliet = folder.path().join("joliet");
    run("7zz", &["x", "-y", &format!("-o{}", joliet.to_str().unwrap()), file]);
    if !files.is_empty() {
        assert_eq!(below(&joliet), *files, "Joliet");
    }
    run("chmod", &["-R", "u+w", folder.path().to_str().unwrap()]);
}

fn files(list: &[(&str, &[u8])]) -> Files {
    list.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect()
}

#[test]
fn cds_for_cloud_init_are_read_back() {
    is_read_back(
        "cidata",
        &files(&[("meta-data", b"{}"), ("user-data", b"#!/bin/sh\n"), ("network-config", b"")]),
    );
    is_read_back(
        "config-2",
        &files(&[("openstack/latest/meta_data.json", b"{}"), ("openstack/latest/user_data", &[7; 5000])]),
    );
}

#[test]
fn every_size_and_name_is_read_back() {
    is_read_back("empty", &Files::new());
    let mut many = Files::new();
    for number in 0..300_usize {
        let path = format!("d{}/{}{number}", number % 7, "x".repeat(number % 90));
        many.insert(path, vec![u8::try_from(number % 251).unwrap(); number * 37]);
    }
    many.insert("a/b/c/d/e/f/g".to_owned(), b"deep".to_vec());
    many.insert("UPPER.and.lower-CASE_1".to_owned(), vec![0xff; 2048]);
    many.insert("L".repeat(100), vec![1; 2049]);
    is_read_back("a label of thirty-two letters ok", &many);
}

#[test]
fn impossible_names_are_refused() {
    let mut broken = medium("a", &files(&[("x", b"1")]));
    broken.files[0].content = Confidential("%".to_owned());
    assert!(matches!(iso(&broken), Err(IsoError::Content { path, .. }) if path == "x"));
    for paths in [["a", "a/b"], ["a/b", "a"]] {
        let clash = medium("a", &files(&[(paths[0], b""), (paths[1], b"")]));
        assert!(matches!(iso(&clash), Err(IsoError::Clash { .. })), "{paths:?}");
    }
    let large = files(&[("a", &vec![0; 65 << 20])]);
    assert_eq!(iso(&medium("a", &large)), Err(IsoError::TooLarge("m".to_owned())));
}
