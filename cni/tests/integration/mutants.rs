//! Mutants of configurations of every plugin and mode. Every ADD either succeeds, and its DEL leaves nothing, or answers one
//! error document, exits non-zero and has changed nothing.

use std::process::Command;

use serde_json::{Map, Value, json};

use crate::support::count;
use crate::support::place::{Fate, Place, templates, walk};

const SEED: u64 = 0x0ff0_c111_0000_0001;

/// xorshift64*: the same mutants every time.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        usize::try_from(value).unwrap() % below
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.next(from.len())]
    }
}

/// Odd values, accidental or hostile.
fn odd_value(random: &mut Random) -> Value {
    match random.next(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!("true"),
        3 => json!(random.next(5000)),
        4 => json!(-1),
        5 => json!(i64::MAX),
        6 => json!(u64::MAX),
        7 => json!(1.5e300),
        8 => json!(""),
        9 => json!(random.pick(&[
            "a/b",
            "../..",
            "..",
            ".",
            "a b",
            "a\0b",
            "\u{202e}",
            "é",
            "a234567890123456",
            "%s"
        ])),
        10 => json!("x".repeat(random.next(3000))),
        11 => json!([]),
        12 => json!({}),
        13 => json!([[[[[[[[1]]]]]]]]),
        14 => json!({"type": "bridge", "name": "x", "id": 1, "minID": 2, "maxID": 1}),
        _ => json!(random.pick(&[
            "02:00:00:00:00:01",
            "192.0.2.1/24",
            "::/0",
            "0.3.1",
            "br1",
            "lo",
            "eth0",
            "nftables"
        ])),
    }
}

fn keys(object: &Map<String, Value>) -> Vec<String> {
    object.keys().cloned().collect()
}

/// Changes one thing somewhere below `value`.
fn mutate(value: &mut Value, random: &mut Random) {
    if let Value::Object(object) = value
        && !object.is_empty()
    {
        let key = random.pick(&keys(object)).clone();
        match random.next(8) {
            0 => drop(object.remove(&key)),
            1 => {
                let member = object.remove(&key).unwrap();
                let key = if random.next(2) == 0 { key.to_uppercase() } else { key.to_lowercase() };
                object.insert(key, member);
            }
            2 => drop(object.insert(key.to_uppercase(), odd_value(random))),
            3 => drop(object.insert(odd_value(random).to_string(), odd_value(random))),
            4 => drop(object.insert(key, odd_value(random))),
            _ => match object.get_mut(&key) {
                Some(member @ (Value::Object(_) | Value::Array(_))) => mutate(member, random),
                Some(member) => *member = odd_value(random),
                None => {}
            },
        }
    } else if let Value::Array(list) = value
        && !list.is_empty()
    {
        let index = random.next(list.len());
        match random.next(4) {
            0 => drop(list.remove(index)),
            1 => list.push(list[index].clone()),
            _ => mutate(&mut list[index], random),
        }
    } else {
        *value = odd_value(random);
    }
}

fn mutant(template: &Value, random: &mut Random) -> String {
    let mut config = template.clone();
    for _ in 0..=random.next(3) {
        mutate(&mut config, random);
    }
    let mut text = config.to_string();
    // One in six is broken as text as well.
    if random.next(6) == 0 {
        for _ in 0..=random.next(3) {
            let at = random.next(text.len() + 1);
            let Some((before, after)) = text.split_at_checked(at) else { continue };
            let middle = random.pick(&[
                "", "\"", "{", "}", "[", "\\", "\\u0000", "\\ud800", ",", "null", "9", "e9", "\u{feff}",
            ]);
            text = match random.next(3) {
                0 => before.to_owned(),
                1 => format!("{before}{middle}{}", after.chars().skip(1).collect::<String>()),
                _ => format!("{before}{middle}{after}"),
            };
            if text.is_empty() {
                break;
            }
        }
    }
    text
}

/// Runs this test once more with folders of its own in the places where plugins keep their files when a configuration names
/// no other, and nothing else to write to but where tests and namespaces are: the names of folders are mutated, too. True in
/// that run.
fn alone() -> bool {
    const MARK: &str = "CNI_TEST_OWN_FOLDERS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let script = "mkdir -p /var/lib/cni /run/cni /run/netns && mount --rbind /run /run && \
                  mount --bind \"${TMPDIR:-/tmp}\" \"${TMPDIR:-/tmp}\" && mount -o remount,bind,ro / && \
                  mount -t tmpfs none /var/lib/cni && mount -t tmpfs none /run/cni && \
                  exec \"$0\" --exact mutants::mutants_of_configurations --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c", script]);
    let status = command.arg(std::env::current_exe().unwrap()).env(MARK, "1").status().unwrap();
    assert!(status.success(), "{status}");
    false
}

#[test]
fn mutants_of_configurations() {
    if !alone() {
        return;
    }
    // Most of the time the kernel waits for a grace period after a link's removal.
    const THREADS: usize = 8;
    let wanted = count(1000, 100_000);
    let (mut made, mut past, mut attached) = (0, 0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let place = Place::enter();
                    let templates = templates(&place);
                    let mut random = Random(SEED + thread as u64);
                    let mut fates = Vec::new();
                    for number in 0..wanted / THREADS {
                        let (template, interface) = random.pick(&templates);
                        let mut call = place.host.call("ADD", &place.pod, template);
                        call.container = format!("c{thread}");
                        call.interface = (*interface).to_owned();
                        call.config = mutant(template, &mut random);
                        let what = format!("mutant {number} of thread {thread}: {}", call.config);
                        fates.push(place.attempt(&call, &what, number % 64 == 0));
                        if number % 16 == 0 {
                            place.forget_bridge();
                        }
                    }
                    assert_eq!(place.rules(), Vec::<String>::new());
                    fates
                })
            })
            .collect();
        for thread in threads {
            let fates = thread.join().unwrap();
            made += fates.len();
            past += fates.iter().filter(|fate| **fate != Fate::NotParsed).count();
            attached += fates.iter().filter(|fate| **fate == Fate::Attached).count();
        }
    });
    for folder in ["/var/lib/cni", "/run/cni"] {
        assert_eq!(walk(folder.as_ref()), 0, "files in {folder}");
    }
    println!("{made} mutants, {past} past parsing, {attached} attached and taken away again");
    assert!(past * 10 >= made, "{past} of {made} past parsing");
}
