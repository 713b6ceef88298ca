//! Uploads that break: resumable ones are resumed, others start again, and no abandoned one is a success.

use std::time::{Duration, Instant};

use places::guest::Dice;

use crate::support::client::Answer;
use crate::support::{Pod, count, is_disk};

const UPLOAD: &str = "/v1beta1/upload";
const VERSION: &str = "Upload-Draft-Interop-Version: 8";
const PARTIAL: &str = "Content-Type: application/partial-upload";

fn image(seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let len = (1 << 20) + dice.next(2 << 20) as usize;
    dice.bytes(len)
}

/// Begins a resumable upload, sends `len` bytes of `image`, and cuts the connection; gives the upload's path.
fn begin(pod: &Pod, image: &[u8], len: usize) -> String {
    let mut client = pod.client();
    let length = format!("Content-Length: {}", image.len());
    let lines = [VERSION, "Upload-Complete: ?1", &length].map(str::to_owned);
    client.head("POST", UPLOAD, &lines).unwrap();
    let interim = client.answer().unwrap();
    assert_eq!(interim.status, 104, "{interim:?}");
    assert_eq!(interim.header("upload-draft-interop-version"), Some("8"));
    client.send(&image[..len]).unwrap();
    interim.header("location").unwrap().to_owned()
}

#[test]
fn upload_is_announced_on_a_connection_that_was_used_before() {
    let mut pod = Pod::new();
    let image = image(5);
    let mut client = pod.client();
    for _ in 0..2 {
        assert_eq!(client.request("GET", "/healthz", &[], b"").status, 200);
    }
    let length = format!("Content-Length: {}", image.len());
    let lines = [VERSION, "Upload-Complete: ?1", &length].map(str::to_owned);
    client.head("POST", UPLOAD, &lines).unwrap();
    let interim = client.answer().unwrap();
    assert_eq!(interim.status, 104, "{interim:?}");
    assert!(interim.header("location").is_some(), "{interim:?}");
    client.send(&image).unwrap();
    assert_eq!(client.answer().unwrap().status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert!(is_disk(&pod, &image));
}

/// Asks for an upload's offset.
fn offset(pod: &Pod, path: &str) -> usize {
    let answer = pod.client().request("HEAD", path, &[VERSION], b"");
    assert_eq!(answer.status, 204, "{answer:?}\n{}", pod.log());
    assert_eq!(answer.header("upload-complete"), Some("?0"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.header("upload-offset").unwrap().parse().unwrap()
}

fn patch(pod: &Pod, path: &str, at: usize, complete: &str, bytes: &[u8]) -> Answer {
    let (at, complete) = (format!("Upload-Offset: {at}"), format!("Upload-Complete: {complete}"));
    pod.client().request("PATCH", path, &[PARTIAL, VERSION, &at, &complete], bytes)
}

#[test]
fn cut_at_random_points() {
    for seed in 0..count(16, 200) {
        let mut dice = Dice(seed * 31);
        let image = image(seed);
        let mut pod = Pod::new();
        let path = begin(&pod, &image, dice.next(image.len() as u64) as usize);
        if dice.next(4) == 0 {
            // Abandoned: no answer calls it a success, and a plain upload starts at once.
            assert!(pod.runs() && pod.message().is_empty());
            let begun = Instant::now();
            // The server may not know yet that the connection is cut.
            let mut answer = pod.client().request("POST", UPLOAD, &[], &image);
            while answer.status == 503 && begun.elapsed() < Duration::from_secs(5) {
                answer = pod.client().request("POST", UPLOAD, &[], &image);
            }
            assert_eq!(answer.status, 200, "seed {seed}: {answer:?}\n{}", pod.log());
        } else {
            loop {
                let at = offset(&pod, &path);
                let left = image.len() - at;
                if dice.next(3) == 0 {
                    let answer = patch(&pod, &path, at, "?1", &image[at..]);
                    // The last cut bytes may still be in flight, and be taken after the question.
                    if answer.status == 409 {
                        continue;
                    }
                    assert_eq!(answer.status, 200, "seed {seed}: {answer:?}\n{}", pod.log());
                    break;
                }
                let some = dice.next(left as u64 + 1) as usize;
                // Of nothing nothing can be cut off: the last part would be whole.
                if left == 0 || dice.next(2) == 0 {
                    // A part that ends in order.
                    let answer = patch(&pod, &path, at, "?0", &image[at..at + some]);
                    if answer.status == 409 {
                        continue;
                    }
                    assert_eq!(answer.status, 204, "seed {seed}: {answer:?}\n{}", pod.log());
                } else {
                    // One that is cut.
                    let lines = [
                        PARTIAL.to_owned(),
                        VERSION.to_owned(),
                        format!("Upload-Offset: {at}"),
                        "Upload-Complete: ?1".to_owned(),
                        format!("Content-Length: {left}"),
                    ];
                    let mut client = pod.client();
                    client.head("PATCH", &path, &lines).unwrap();
                    client.send(&image[at..at + some.min(left.saturating_sub(1))]).unwrap();
                }
            }
        }
        assert!(is_disk(&pod, &image), "seed {seed}");
        pod.assert_uploaded();
    }
}

#[test]
fn requests_with_another_offset_or_length_are_refused() {
    let image = image(1);
    let mut pod = Pod::new();
    let path = begin(&pod, &image, 1000);
    let at = offset(&pod, &path);
    let wrong = patch(&pod, &path, at + 1, "?1", &image[at + 1..]);
    assert_eq!(wrong.status, 409);
    assert_eq!(wrong.header("upload-offset"), Some(at.to_string().as_str()));
    assert_eq!(wrong.header("content-type"), Some("application/problem+json"));
    assert!(wrong.body.contains("mismatching-upload-offset"), "{}", wrong.body);
    for (headers, status) in [
        (vec![VERSION, "Upload-Complete: ?1", "Upload-Offset: 1"], 415),
        (vec![PARTIAL, VERSION, "Upload-Complete: ?1"], 400),
        (vec![PARTIAL, VERSION, "Upload-Offset: 5"], 400),
        (vec![PARTIAL, VERSION, "Upload-Complete: yes", "Upload-Offset: 5"], 400),
    ] {
        assert_eq!(pod.client().request("PATCH", &path, &headers, b"x").status, status, "{headers:?}");
    }
    // A path without an upload, and a client without rights.
    assert_eq!(patch(&pod, "/v1beta1/uploads/0123", at, "?1", b"x").status, 404);
    assert_eq!(pod.client_named(Some("other")).request("HEAD", &path, &[], b"").status, 401);
    // None of that did any harm.
    assert_eq!(offset(&pod, &path), at);
    assert_eq!(patch(&pod, &path, at, "?1", &image[at..]).status, 200);
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn an_upload_of_another_length_is_none() {
    let image = image(2);
    let mut pod = Pod::new();
    let path = begin(&pod, &image, 1000);
    let at = offset(&pod, &path);
    assert_eq!(patch(&pod, &path, at, "?1", &image[at..image.len() - 1]).status, 400);
    assert!(pod.runs() && pod.message().is_empty());
    pod.wait_for("the place to be free", || {
        pod.client().request("HEAD", &path, &[VERSION], b"").status == 404
    });
    assert_eq!(pod.client().request("POST", UPLOAD, &[], &image).status, 200, "{}", pod.log());
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn a_cancelled_one_is_forgotten() {
    let image = image(3);
    let mut pod = Pod::new();
    let path = begin(&pod, &image, 1000);
    assert_eq!(pod.client().request("DELETE", &path, &[VERSION], b"").status, 204);
    assert_eq!(pod.client().request("HEAD", &path, &[VERSION], b"").status, 404);
    assert_eq!(pod.client().request("POST", UPLOAD, &[], &image).status, 200, "{}", pod.log());
    pod.assert_uploaded();
}

#[test]
fn broken_plain_upload_starts_again() {
    let image = image(4);
    let mut pod = Pod::new();
    for len in [0, 1, 70_000, image.len() - 1] {
        let mut client = pod.client();
        client.head("POST", UPLOAD, &[format!("Content-Length: {}", image.len())]).unwrap();
        client.send(&image[..len]).unwrap();
        drop(client);
        assert!(pod.runs() && pod.message().is_empty());
    }
    let begun = Instant::now();
    while pod.client().request("POST", UPLOAD, &[], &image).status == 503 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the broken one holds the place\n{}", pod.log());
    }
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn a_connection_that_is_dead_is_not_waited_for() {
    let image = image(5);
    let mut pod = Pod::new();
    // It stays open, and nothing comes any more.
    let mut dead = pod.client();
    let length = format!("Content-Length: {}", image.len());
    dead.head("POST", UPLOAD, &[length, "Expect: 100-continue".to_owned()]).unwrap();
    // Its body is asked for once it is the upload that runs.
    assert_eq!(dead.answer().unwrap().status, 100);
    dead.send(&image[..5000]).unwrap();
    let begun = Instant::now();
    let mut refused = 0;
    while pod.client().request("POST", UPLOAD, &[], &image).status == 503 {
        refused += 1;
        std::thread::sleep(Duration::from_millis(300));
        assert!(begun.elapsed() < Duration::from_secs(25), "it is waited for\n{}", pod.log());
    }
    assert!(refused > 0, "one that may live is not overtaken at once");
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}
