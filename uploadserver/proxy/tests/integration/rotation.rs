//! Certificates and token keys change again and again while uploads run: none of them fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::cluster::key_pair;
use crate::support::proxy::{Proxy, put, put_certificate};
use crate::support::server::{CLIENT, MIB, count, sha256};

#[test]
fn uploads_go_on_while_certificates_and_keys_change() {
    let proxy = Proxy::new();
    let image: Vec<u8> = (0..2 * MIB).map(|at| (at % 249) as u8).collect();
    let (long, every) = (Duration::from_secs(count(10, 300)), Duration::from_secs(count(2, 10)));
    let (ended, uploads, rotations) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (proxy, image, ended, uploads) = (&proxy, &image, &ended, &uploads);
            scope.spawn(move || {
                for round in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let claim = format!("disk-{worker}-{round}");
                    let mut pod = proxy.pod(&claim);
                    let mut client = proxy.client();
                    let head = [proxy.bearer(&claim), format!("Content-Length: {}", image.len())];
                    client.head("POST", "/v1beta1/upload", &head).unwrap();
                    // Every upload sees a change while it runs.
                    let pieces = image.chunks(image.len() / 10);
                    for piece in pieces {
                        client.send(piece).unwrap();
                        std::thread::sleep(every / 8);
                    }
                    let answer = client.answer().unwrap();
                    assert_eq!(answer.status, 200, "{claim}: {answer:?}\n{}", proxy.log());
                    pod.assert_uploaded();
                    let disk = std::fs::read(pod.disk()).unwrap();
                    assert!(disk.starts_with(image) && sha256(&pod.disk(), image.len() as u64).1);
                    uploads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < long {
            let (private, public) = key_pair();
            put(proxy.folder.path(), "id_rsa.pub", &public);
            proxy.cluster.sign_with(&private);
            put_certificate(proxy.folder.path(), "server", &proxy.authority, "proxy");
            put_certificate(proxy.folder.path(), "client", &proxy.authority, CLIENT);
            rotations.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(every);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let (uploads, rotations) = (uploads.into_inner(), rotations.into_inner());
    println!("{uploads} uploads while certificates and key changed {rotations} times: none failed");
    assert!(uploads >= 2 && rotations >= 4, "{uploads} {rotations}");
}
