//! Which disk an image holds: packings, layers, platforms, damage, broken connections.

use std::fs;
use std::sync::atomic::Ordering;

use importer::Kind;
use importer::source::registry::Options;
use serde_json::{Value, json};

use crate::registry::pull::{assert_pulled, assert_refused, open, options, pull, with_user};
use crate::registry::servers::Cutter;
use crate::support::errors::chain;
use sources::images::{
    DOCKER_GZIP, DOCKER_LIST, DOCKER_MANIFEST, GZIP, Layer, MIB, OCI_INDEX, OCI_MANIFEST, PASSWORD, PLAIN,
    ZSTD, disk, tar,
};
use sources::registry::{Login, Registry, Store, Tls};

#[test]
fn disks_of_every_packing_in_every_layer() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(3 * MIB + 512, 1);
    let base = || Layer::new(GZIP, &[("etc/", b""), ("etc/passwd", b"root"), ("disk.img", b"not this one")]);
    for (n, kind) in [GZIP, ZSTD, PLAIN, DOCKER_GZIP].into_iter().enumerate() {
        let with = Layer::new(kind, &[("disk/", b""), ("disk/a.img", &raw), ("etc/after", b"x")]);
        for (place, layers) in [
            ("only", vec![with.clone()]),
            ("first", vec![with.clone(), base(), base()]),
            ("middle", vec![base(), with.clone(), base()]),
            ("last", vec![base(), base(), with.clone()]),
        ] {
            let name = format!("kind{n}");
            store.push(&name, place, &layers);
            assert_pulled(&options(registry.image(&format!("{name}:{place}")), Some(&tls)), &raw);
        }
    }
    // Names as other tools write them, and a file of no bytes.
    for (tag, name) in [("dot", "./disk/x"), ("long", &*format!("disk/{}", "n".repeat(200)))] {
        store.push("names", tag, &[Layer::new(GZIP, &[(name, &raw)])]);
        assert_pulled(&options(registry.image(&format!("names:{tag}")), Some(&tls)), &raw);
    }
    store.push("names", "latest", &[Layer::new(GZIP, &[("disk/empty", b"")])]);
    assert_pulled(&options(registry.image("names"), Some(&tls)), b"");
    let opened = open(&options(registry.image("names:dot"), Some(&tls))).unwrap();
    assert_eq!(opened.file(), "disk/x");
    assert_eq!(opened.environment(), ["PATH=/bin", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=debian"]);
}

#[test]
fn later_layers_hide_earlier_ones() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let layer = |files: &[(&str, &[u8])]| Layer::new(GZIP, files);
    let pulled = |tag: &str, layers: &[Layer]| {
        store.push("w", tag, layers);
        options(registry.image(&format!("w:{tag}")), Some(&tls))
    };
    let none = "Failed to find VM disk image file in the container image";
    let old: &[(&str, &[u8])] = &[("disk/old", b"old")];
    assert_pulled(&pulled("replaced", &[layer(old), layer(&[("disk/old", b"new")])]), b"new");
    assert_pulled(&pulled("other", &[layer(old), layer(&[("disk/.wh.else", b""), ("a", b"")])]), b"old");
    assert_pulled(
        &pulled("moved", &[layer(old), layer(&[("disk/.wh.old", b""), ("disk/new", b"new")])]),
        b"new",
    );
    let two = layer(&[("disk/a", b"a"), ("disk/b", b"b")]);
    assert_pulled(&pulled("one-of-two", &[two.clone(), layer(&[("disk/.wh.a", b"")])]), b"b");
    for (tag, top) in [
        ("removed", layer(&[("disk/.wh.old", b"")])),
        ("opaque", layer(&[("disk/.wh..wh..opq", b"")])),
        ("folder", layer(&[(".wh.disk", b"")])),
        ("link", layer(&[("disk", b"->elsewhere")])),
        ("root", layer(&[(".wh..wh..opq", b"")])),
    ] {
        assert_refused(&pulled(tag, &[layer(old), top]), Kind::Refused, none);
    }
    let above = layer(&[("disk/.wh.old", b"")]);
    assert_pulled(&pulled("again", &[layer(old), above, layer(&[("disk/old", b"back")])]), b"back");
}

#[test]
fn a_second_disk_in_another_layer_is_refused() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(MIB, 5);
    let a: (&str, &[u8]) = ("disk/a", &raw);
    let layer = |kind, files: &[(&str, &[u8])]| Layer::new(kind, files);
    let several = "image directory contains more than one file: disk/b and disk/a";
    for kind in [GZIP, ZSTD, PLAIN] {
        let base = || layer(kind, &[("etc/", b""), ("etc/passwd", b"root")]);
        let b = || layer(kind, &[("disk/", b""), ("disk/b", b"other")]);
        let hides = |whiteout: &'static str| layer(kind, &[("disk/b", b"other"), (whiteout, b"")]);
        for (tag, layers, refused) in [
            ("next", vec![layer(kind, &[a]), b()], true),
            ("far", vec![base(), layer(kind, &[("etc/x", b""), a]), base(), b(), base()], true),
            ("link", vec![layer(kind, &[("disk/a", b"->/etc/shadow")]), b()], true),
            ("other", vec![layer(kind, &[a]), hides("disk/.wh.c")], true),
            // The entry that hides the one below stands behind the disk in its layer.
            ("hidden", vec![layer(kind, &[a]), hides("disk/.wh.a")], false),
            ("opaque", vec![layer(kind, &[a]), hides("disk/.wh..wh..opq")], false),
            ("between", vec![layer(kind, &[a]), layer(kind, &[("disk/.wh.a", b"")]), b()], false),
            ("folder", vec![layer(kind, &[a]), layer(kind, &[("disk/a/", b"")]), b()], false),
        ] {
            store.push("m", tag, &layers);
            let options = options(registry.image(&format!("m:{tag}")), Some(&tls));
            match refused {
                // Before a byte of the disk is read.
                true => assert!(chain(&open(&options).expect_err(tag)).contains(several), "{tag}"),
                false => assert_pulled(&options, b"other"),
            }
        }
    }
}

#[test]
fn images_without_one_disk_are_refused() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(MIB, 2);
    #[rustfmt::skip]
    let table: [(&str, Vec<u8>, &str); 8] = [
        ("none", tar(&[("disk/", b""), ("disks/a", b"x"), ("a/disk/b", b"x")]), "Failed to find VM disk image file"),
        ("two", tar(&[("disk/a", &raw), ("x", b""), ("disk/b", b"x")]), "image directory contains more than one file: disk/a and disk/b"),
        ("twice", tar(&[("disk/a", &raw), ("disk/a", b"x")]), "more than one file"),
        ("deep", tar(&[("disk/sub/a", b"x")]), "image directory contains another directory: disk/sub/a"),
        ("link", tar(&[("disk/a", b"->b")]), "disk/a is a link"),
        ("up", { let mut t = tar(&[("disk/xx/a", b"x")]); t[5..7].copy_from_slice(b".."); seal(&mut t); t }, "Failed to find"),
        ("notar", b"this is no tar archive at all, but a text of some length".repeat(20), "tar archive"),
        ("cut", tar(&[("disk/a", &raw)])[..MIB / 2].to_vec(), "ends inside disk/a"),
    ];
    for (tag, tar, words) in table {
        store.push("bad", tag, &[Layer::of_tar(GZIP, &tar)]);
        // A failure while the disk is read gets its kind from the reader; the program's is checked in `imports`.
        let kind = if tag == "cut" { Kind::Process } else { Kind::Refused };
        assert_refused(&options(registry.image(&format!("bad:{tag}")), Some(&tls)), kind, words);
    }
    store.push("bad", "empty", &[]);
    assert_refused(&options(registry.image("bad:empty"), Some(&tls)), Kind::Refused, "Failed to find");
    assert_refused(&options(registry.image("bad:missing"), Some(&tls)), Kind::Connect, "404");
    assert_refused(
        &options(registry.image("bad:missing"), Some(&tls)),
        Kind::Connect,
        "failed to pull image",
    );
    assert_refused(&options(registry.image("nobody/nothing"), Some(&tls)), Kind::Connect, "404");
    assert_refused(&options(registry.image("UPPER"), Some(&tls)), Kind::Usage, "docker://host");
    let host = format!("docker://{}", registry.address);
    for name in [
        host.as_str(),
        "docker://localhost",
        "docker://localhost:5000",
        "docker://quay.io",
        "docker://[::1]:5",
    ] {
        assert_refused(&options(name.to_owned(), Some(&tls)), Kind::Usage, "without a repository on it");
    }
}

/// Puts the checksum of the first header right.
fn seal(tar: &mut [u8]) {
    tar[148..156].copy_from_slice(b"        ");
    let sum: u32 = tar[..512].iter().map(|&byte| u32::from(byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn the_platforms_image_is_chosen() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    for (kind, list, tag) in [(GZIP, OCI_INDEX, "oci"), (DOCKER_GZIP, DOCKER_LIST, "docker")] {
        let platforms = [("amd64", "", "pc"), ("arm64", "v8", "arm"), ("arm", "v7", "old arm")];
        let entries: Vec<Value> = platforms
            .iter()
            .map(|(architecture, variant, content)| {
                let layer = Layer::new(kind, &[("disk/d", content.as_bytes())]);
                let (digest, size, _) = store.push("multi", &format!("{architecture}-{tag}"), &[layer]);
                let mut platform = json!({"os": "linux", "architecture": architecture});
                if !variant.is_empty() {
                    platform["variant"] = json!(variant);
                }
                let kind = if list == OCI_INDEX { OCI_MANIFEST } else { DOCKER_MANIFEST };
                json!({"mediaType": kind, "digest": digest, "size": size, "platform": platform})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": list, "manifests": entries});
        let (digest, _) = store.push_document("multi", tag, list, &index);
        let image = registry.image(&format!("multi:{tag}"));
        let with = |platform: Option<&str>| Options {
            platform: platform.map(str::to_owned),
            ..options(image.clone(), Some(&tls))
        };
        assert_pulled(&with(Some("amd64")), b"pc");
        assert_pulled(&with(Some("arm64")), b"arm");
        assert_pulled(&with(Some("linux/arm64/v8")), b"arm");
        assert_pulled(&with(Some("arm/v7")), b"old arm");
        // Without an index the configuration decides; the store's images are marked linux/amd64.
        let alone = registry.image(&format!("multi:amd64-{tag}"));
        let alone = |platform: Option<&str>| Options {
            platform: platform.map(str::to_owned),
            ..options(alone.clone(), Some(&tls))
        };
        assert_pulled(&alone(Some("amd64")), b"pc");
        assert_pulled(&alone(None), b"pc");
        assert_refused(
            &alone(Some("arm64")),
            Kind::Refused,
            "the image is for linux/amd64, and linux/arm64 was asked for",
        );
        let here = if cfg!(target_arch = "x86_64") { "pc" } else { "arm" };
        assert_pulled(&with(None), here.as_bytes());
        let words = "the image is not there for linux/s390x; it is there for: \
                     linux/amd64, linux/arm64/v8, linux/arm/v7";
        assert_refused(&with(Some("s390x")), Kind::Refused, words);
        let by_digest = registry.image(&format!("multi@{digest}"));
        assert_pulled(
            &Options { platform: Some("amd64".to_owned()), ..options(by_digest, Some(&tls)) },
            b"pc",
        );
    }
}

#[test]
fn tampered_images_fail() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(2 * MIB, 3);
    let flip = |digest: &str, at: usize| {
        let path = store.blob(digest);
        let mut bytes = fs::read(&path).unwrap();
        let at = if at == usize::MAX { bytes.len() - 1 } else { at };
        bytes[at] ^= 0x40;
        fs::write(path, bytes).unwrap();
    };
    // In the disk's data, in another file behind it, and in the zeroes behind the archive.
    for (tag, at) in [("data", MIB), ("behind", 2 * MIB + 1024 + 100), ("end", usize::MAX)] {
        let files: &[(&str, &[u8])] = &[("disk/a", &raw), ("b", tag.as_bytes())];
        let (_, _, layers) = store.push("t", tag, &[Layer::new(PLAIN, files)]);
        flip(&layers[0], at);
        let words = "does not match its digest";
        assert_refused(&options(registry.image(&format!("t:{tag}")), Some(&tls)), Kind::Digest, words);
    }
    // A layer that only hides something is verified as well.
    let low = Layer::new(PLAIN, &[("disk/a", &raw)]);
    let top = Layer::new(PLAIN, &[("file", b"content of top")]);
    let (_, _, layers) = store.push("t", "top", &[low, top]);
    flip(&layers[1], 512 + 3);
    assert_refused(&options(registry.image("t:top"), Some(&tls)), Kind::Digest, "does not match its digest");
    // Compressed: the decoder may see it first.
    let (_, _, layers) = store.push("t", "gz", &[Layer::new(GZIP, &[("disk/gz", &raw)])]);
    flip(&layers[0], MIB);
    let error = pull(&options(registry.image("t:gz"), Some(&tls))).unwrap_err();
    assert!(matches!(error.kind(), Kind::Digest | Kind::Refused), "{}", chain(&error));
    // Shorter than declared in the manifest.
    let (_, _, layers) = store.push("t", "short", &[Layer::new(PLAIN, &[("disk/short", &raw)])]);
    let path = store.blob(&layers[0]);
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 512]).unwrap();
    assert_refused(&options(registry.image("t:short"), Some(&tls)), Kind::Digest, "its manifest declares");
    // A manifest asked for by digest.
    let (digest, _, _) = store.push("t", "m", &[Layer::new(PLAIN, &[("disk/m", &raw)])]);
    let path = store.blob(&digest);
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(path, manifest.replace("\"schemaVersion\":2", "\"schemaVersion\":2 ")).unwrap();
    let image = options(registry.image(&format!("t@{digest}")), Some(&tls));
    // The registry notices by itself, or else we do.
    let error = pull(&image).unwrap_err();
    assert!(matches!(error.kind(), Kind::Digest | Kind::Connect), "{}", chain(&error));
}

#[test]
fn connections_that_break_are_survived() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    let cutter = Cutter::start(registry.address, 600_000);
    let raw = disk(6 * MIB, 4);
    for (tag, kind) in [("gz", GZIP), ("zst", ZSTD), ("plain", PLAIN)] {
        let layer = Layer::new(kind, &[("disk/a", &raw)]);
        assert!(layer.blob.len() > 4 * MIB);
        store.push("cut", tag, &[layer]);
        let before = cutter.cuts.load(Ordering::SeqCst);
        assert_pulled(&with_user(format!("docker://{}/cut:{tag}", cutter.address), &tls, PASSWORD), &raw);
        let cuts = cutter.cuts.load(Ordering::SeqCst) - before;
        assert!((6..40).contains(&cuts), "{cuts} cuts");
    }
}
