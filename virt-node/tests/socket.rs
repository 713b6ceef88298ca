//! The launcher's socket: what is no message, who does not read, who writes too much; nobody else waits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/running.rs"]
mod running;
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use api::launcher::{Answer, Call, FRAME_MAX, Message, RefusedKind, Request, SOCKET, State, frame};
use running::{FLOODS, HALTS, Launcher, PATIENCE, eventually};

/// Neither end waits for the other for ever.
fn patient(stream: &UnixStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

fn raw(launcher: &Launcher) -> UnixStream {
    let stream = eventually("the socket", || UnixStream::connect(launcher.folder().join(SOCKET)).ok());
    patient(&stream);
    stream
}

/// What comes back for these bytes, until the connection ends or a message is there.
fn said(stream: &mut UnixStream) -> Option<Message> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut json = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut json).unwrap();
    Some(serde_json::from_slice(&json).unwrap())
}

fn framed(json: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(json.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(json);
    bytes
}

/// Peak of the worker's own memory in KiB.
fn peak(launcher: &Launcher) -> u64 {
    let line = running::status_line(launcher.worker(), "VmHWM");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn what_is_no_message_is_refused_and_harms_nobody() {
    let launcher = Launcher::new();
    for (bytes, wanted) in [
        (
            framed(b"{\"version\": 2, \"id\": 4, \"request\": \"status\"}"),
            "message of version 2; this program speaks version 1",
        ),
        (framed(b"{\"version\": 1, \"id\": 4, \"request\": \"dance\"}"), "unknown variant"),
        (framed(b"\xff\xfe"), "no message"),
        (framed(b""), "no message"),
        (framed(&b"[".repeat(100_000)), "no message"),
        (vec![0xff; 4], "are the most"),
    ] {
        let mut stream = raw(&launcher);
        stream.write_all(&bytes).unwrap();
        let Some(Message::Refused { kind: RefusedKind::Invalid, message, .. }) = said(&mut stream) else {
            panic!("{wanted}")
        };
        assert!(message.contains(wanted), "{message}");
    }
    // Half a frame, and nobody behind it.
    let mut half = raw(&launcher);
    half.write_all(&[0, 0, 1, 0, b'{']).unwrap();
    drop(half);
    assert_eq!(launcher.status().state, State::Waiting);
}

#[test]
fn calls_are_answered_in_order_without_waiting_for_one_another() {
    let launcher = Launcher::new();
    let mut stream = raw(&launcher);
    let calls: Vec<u8> = (1..=50).flat_map(|id| frame(&Call::new(id, Request::Status)).unwrap()).collect();
    stream.write_all(&calls).unwrap();
    for wanted in 1..=50 {
        let Some(Message::Answer { id, answer: Answer::Status(_) }) = said(&mut stream) else { panic!() };
        assert_eq!(id, wanted);
    }
}

#[test]
fn who_does_not_read_is_cut_off_and_blocks_nobody() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    let mut deaf = raw(&launcher);
    deaf.write_all(&frame(&Call::new(1, Request::Watch)).unwrap()).unwrap();
    let Some(Message::Answer { .. }) = said(&mut deaf) else { panic!() };
    let begun = Instant::now();
    let mut cut = false;
    for _ in 0..3000 {
        launcher.ask(Request::Pause).unwrap();
        launcher.ask(Request::Unpause).unwrap();
        // A socket that is cut off says so to who writes.
        if deaf.write_all(&frame(&Call::new(2, Request::Status)).unwrap()).is_err() {
            cut = true;
            break;
        }
    }
    assert!(cut, "events wait for it without end");
    println!("cut off after {:?}", begun.elapsed());
    assert_eq!(launcher.status().state, State::Running);
}

#[test]
fn a_writer_as_fast_as_it_can_and_a_guest_that_floods_take_bounded_memory() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(FLOODS));
    launcher.until_serial("xxxx");
    let before = peak(&launcher);
    let socket = launcher.folder().join(SOCKET);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                // Whitespace is no call, however much of it comes.
                let most = framed(&vec![b' '; FRAME_MAX]);
                let until = Instant::now() + Duration::from_secs(5);
                let mut sent = 0;
                while Instant::now() < until {
                    let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                    patient(&stream);
                    while stream.write_all(&most).is_ok() && said(&mut stream).is_some() {
                        sent += most.len();
                        if Instant::now() > until {
                            break;
                        }
                    }
                }
                sent
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    while !writers.iter().all(std::thread::JoinHandle::is_finished) {
        let begun = Instant::now();
        assert_eq!(launcher.status().state, State::Running);
        slowest = slowest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    let sent: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert!(sent > FRAME_MAX, "{sent}");
    // Four clients that send as much as they may hold one such frame at a time.
    let grown = (peak(&launcher) - before) / 1024;
    println!(
        "{} MB sent; the worker grew by {grown} MiB at most; slowest status {slowest:?}",
        sent / 1_000_000
    );
    assert!(grown < 100, "{grown} MiB");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
}

#[test]
fn too_many_clients_are_turned_away() {
    let launcher = Launcher::new();
    launcher.until(State::Waiting);
    // One who asked before may be counted for a moment after going.
    let served = || {
        let mut stream = raw(&launcher);
        stream.write_all(&frame(&Call::new(1, Request::Status)).unwrap()).ok()?;
        said(&mut stream).map(|_| stream)
    };
    let all: Vec<UnixStream> = (0..32).map(|_| eventually("an answer", served)).collect();
    assert!(said(&mut raw(&launcher)).is_none(), "the connection ends");
    drop(all);
    launcher.until(State::Waiting);
}
