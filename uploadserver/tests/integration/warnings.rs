//! Uploads that are no disks, or no whole ones: what is taken with a warning, and what failed uploads leave.

#![allow(unreachable_pub, reason = "a corpus that other packages' tests have too")]

#[path = "../../../importer/tests/integration/vhds.rs"]
mod vhds;

use std::fs;
use std::os::unix::fs::MetadataExt;

use places::guest::Dice;
use places::{Loop, Mount, run};

use crate::support::tls::Authority;
use crate::support::{CLIENT, MIB, Pod, Setup};

const UPLOAD: &str = "/v1beta1/upload";

#[test]
fn warnings_of_an_upload_are_in_the_answer_and_in_the_termination_message() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), Dice(1).bytes(4096)).unwrap();
    let tar = folder.path().join("tar");
    run("tar", &["-C", folder.path().to_str().unwrap(), "-cf", tar.to_str().unwrap(), "file"]);
    let page =
        |text: &str| text.bytes().chain(std::iter::repeat_n(b' ', 1024 - text.len())).collect::<Vec<u8>>();
    for (what, image, words) in [
        ("an archive", fs::read(&tar).unwrap(), "tar archive"),
        ("a zip", [&b"PK\x03\x04"[..], &[7; 1020]].concat(), "zip"),
        ("a web page", page("<!DOCTYPE html><html><body>404</body></html>"), "HTML"),
        ("an error", page(r#"{"error": {"code": 404, "message": "no such object"}}"#), "JSON"),
        ("an odd size", Dice(2).bytes(MIB as usize + 100), "1048676"),
    ] {
        for way in [UPLOAD, "/v1beta1/upload-async"] {
            let mut pod = Pod::new();
            let answer = pod.client().request("POST", way, &[], &image);
            assert_eq!(answer.status, 200, "{what}, {way}: {answer:?}\n{}", pod.log());
            assert!(
                answer.body.starts_with("warning: ") && answer.body.contains(words),
                "{what}: {answer:?}"
            );
            pod.assert_uploaded();
            let message = pod.message();
            assert!(message.contains("; warning: ") && message.contains(words), "{what}: {message}");
            assert!(fs::read(pod.disk()).unwrap().starts_with(&image), "{what}: taken as it is");
        }
    }
}

#[test]
fn a_failed_upload_leaves_no_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("raw"), Dice(3).bytes(8 << 20)).unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &path("raw"), &path("qcow2")]);
    let whole = fs::read(path("qcow2")).unwrap();
    // The entry of the last cluster of data points past the end.
    let mut corrupt = whole.clone();
    let l1 = usize::try_from(u64::from_be_bytes(whole[40..48].try_into().unwrap())).unwrap();
    let l2 = u64::from_be_bytes(whole[l1..l1 + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00;
    let last = usize::try_from(l2).unwrap() + 8 * ((8 << 20) / 65536 - 1);
    corrupt[last + 2] = 0x40;
    for block in [false, true] {
        let device = block.then(|| Loop::new(16 * MIB, 512));
        let target = device.as_ref().map(|device| device.device.as_path());
        let mut pod = Pod::start(&Setup { device: target, ..Setup::default() });
        let occupied = |pod: &Pod| match &device {
            Some(device) => fs::metadata(&device.backing).unwrap().blocks() * 512,
            None => fs::read_dir(pod.path("data"))
                .unwrap()
                .map(|one| one.unwrap().metadata().unwrap().blocks() * 512)
                .sum(),
        };
        let before = occupied(&pod);
        let what = if block { "a device" } else { "a file" };
        let answer = pod.client().request("POST", UPLOAD, &[], &corrupt);
        assert_eq!(answer.status, 500, "{what}: {answer:?}");
        assert!(pod.runs() && pod.message().is_empty(), "{what}");
        assert!(occupied(&pod) <= before, "{what}, corrupt: {} after {before}", occupied(&pod));
        // The client is gone in the middle, of an image and of a raw disk.
        for bytes in [&whole, &Dice(4).bytes(8 << 20)] {
            let failures = |pod: &Pod| pod.log().matches("Saving stream failed").count();
            let failed = failures(&pod);
            let mut client = pod.client();
            client.head("POST", UPLOAD, &[format!("Content-Length: {}", bytes.len())]).unwrap();
            client.send(&bytes[..bytes.len() * 3 / 4]).unwrap();
            drop(client);
            pod.wait_for("it has failed", || failures(&pod) > failed);
            pod.wait_for("nothing is left of it", || occupied(&pod) <= before);
        }
        // Begun as a resumable one, and given up by its client.
        let failed = pod.log().matches("Saving stream failed").count();
        let version = "Upload-Draft-Interop-Version: 8";
        let half = &whole[..whole.len() / 2];
        let created = pod.client().request("POST", UPLOAD, &[version, "Upload-Complete: ?0"], half);
        let path = created.header("location").unwrap_or_else(|| panic!("{created:?}")).to_owned();
        pod.wait_for("something is written", || occupied(&pod) > before);
        assert_eq!(pod.client().request("DELETE", &path, &[version], b"").status, 204, "{what}");
        assert!(pod.log().matches("Saving stream failed").count() > failed, "{what}");
        assert!(occupied(&pod) <= before, "{what}, given up: {} after {before}", occupied(&pod));
        let answer = pod.client().request("POST", UPLOAD, &[], &whole);
        assert_eq!(answer.status, 200, "{what}: {answer:?}\n{}", pod.log());
        pod.assert_uploaded();
    }
}

/// Its backing file is in memory, where no holes can be made.
#[test]
fn device_without_discard_keeps_a_broken_upload_until_the_next_one() {
    let mount = Mount::memory("ramfs", 0);
    let backing = mount.path().join("backing");
    fs::File::create(&backing).unwrap().set_len(16 * MIB).unwrap();
    let device = Loop::over(backing, 512, tempfile::tempdir().unwrap());
    let mut pod = Pod::start(&Setup { device: Some(&device.device), ..Setup::default() });
    let image = Dice(6).bytes(8 << 20);
    let mut client = pod.client();
    client.head("POST", UPLOAD, &[format!("Content-Length: {}", image.len())]).unwrap();
    client.send(&image[..6 << 20]).unwrap();
    drop(client);
    pod.wait_for("it is said", || pod.log().contains("the device cannot discard"));
    assert_eq!(pod.client().request("POST", UPLOAD, &[], &image).status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(fs::read(&device.device).unwrap(), [image, vec![0; 8 << 20]].concat());
}

#[test]
fn an_impossible_vhd_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut pod = Pod::new();
    for (name, image, _) in vhds::impossible(folder.path()) {
        for way in [UPLOAD, "/v1beta1/upload-async"] {
            let answer = pod.client().request("POST", way, &[], &image);
            assert_eq!(answer.status, 500, "{name}: {answer:?}");
            assert!(pod.runs() && pod.message().is_empty(), "{name}");
            assert_eq!(fs::read_dir(pod.path("data")).unwrap().count(), 0, "{name}");
        }
    }
}

#[test]
fn a_client_of_an_authority_that_alone_was_replaced_is_accepted() {
    let image = Dice(5).bytes(MIB as usize);
    let mut pod = Pod::new();
    let fresh = Authority::new();
    let client = |pod: &Pod, authority: &Authority| {
        crate::support::client::Client::new(pod.connect().unwrap(), Some(&authority.sign(CLIENT))).unwrap()
    };
    let refused = |pod: &Pod, authority: &Authority| {
        let mut client = client(pod, authority);
        let answer = client.head("HEAD", "/v1beta1/upload-async", &[]).and_then(|()| client.answer());
        answer.is_err()
    };
    assert!(refused(&pod, &fresh));
    // By rename, as the kubelet does; the server's own certificate stays.
    fs::write(pod.path("ca.new"), fresh.certificate()).unwrap();
    fs::rename(pod.path("ca.new"), pod.path("ca.crt")).unwrap();
    pod.wait_for("the new authority is trusted", || !refused(&pod, &fresh));
    assert!(refused(&pod, &pod.authority), "the old one is not");
    assert_eq!(client(&pod, &fresh).request("POST", UPLOAD, &[], &image).status, 200, "{}", pod.log());
    pod.assert_uploaded();
}
