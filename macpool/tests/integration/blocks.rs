//! Replicas and their shared object, with clocks of the test: never do two give out of one block at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::net::Range;
use api::net::pool::Block;
use macpool::Kind;
use macpool::blocks::{BEAT, Book, BookChange, FENCE, LEASE, Ledger, Me, SETTLE, enough};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn range(start: &str, end: &str) -> Range {
    Range::parse(start, end).unwrap()
}

fn large() -> Range {
    range("02:00:00:00:00:00", "02:00:00:ff:ff:ff")
}

fn ledger(name: &str, incarnation: &str) -> Ledger {
    let [name, incarnation] = [name, incarnation].map(str::to_owned);
    Ledger::new(Me { name, incarnation, address: "127.0.0.1:1".to_owned() })
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn count(runs: &[(Block, u64)]) -> u64 {
    runs.iter().map(|(_, count)| count).sum()
}

/// Reads, plans and writes without interleaving.
fn go(ledger: &mut Ledger, object: &mut Book, range: Range, free: u64, now: Duration) -> Option<BookChange> {
    ledger.read(object.clone(), now).unwrap();
    let turn = ledger.next_change(range, free, 7, now)?;
    *object = Book::parse(&turn.book.text()).unwrap();
    ledger.wrote(&turn, now);
    Some(turn)
}

#[test]
fn replicas_claim_what_they_need_and_nothing_of_each_other() {
    let mut object = Book::default();
    let (mut a, mut b) = (ledger("a", "1"), ledger("b", "1"));
    assert!(!a.may_give(Duration::ZERO));
    let of_a = go(&mut a, &mut object, large(), 0, Duration::ZERO).unwrap();
    let of_b = go(&mut b, &mut object, large(), 0, Duration::ZERO).unwrap();
    assert_eq!((count(&of_a.fresh), count(&of_b.fresh)), (64, 64));
    assert!(of_a.settling.is_empty() && of_b.settling.is_empty());
    assert_eq!(object.replicas["a"].blocks, of_a.fresh);
    let (first, _) = of_b.fresh[0];
    assert_eq!(object.owner(first).unwrap().0, "b");
    assert!(object.owner(0).is_none());
    // Enough is there, and the beat is not due.
    assert_eq!(go(&mut a, &mut object, large(), 1 << 14, seconds(1)), None);
    let beat = go(&mut a, &mut object, large(), 1 << 13, BEAT).unwrap();
    assert!(beat.fresh.is_empty());
    assert_eq!(object.replicas["a"].beat, 2);
    let more = go(&mut a, &mut object, large(), 1000, BEAT).unwrap();
    assert_eq!(count(&more.fresh), 61);
}

#[test]
fn a_small_range_is_shared_as_far_as_it_goes() {
    let small = range("02:00:00:00:00:10", "02:00:00:00:00:19");
    let mut object = Book::default();
    let (mut a, mut b) = (ledger("a", "1"), ledger("b", "1"));
    assert_eq!(count(&go(&mut a, &mut object, small, 0, Duration::ZERO).unwrap().fresh), 1);
    assert!(go(&mut b, &mut object, small, 0, Duration::ZERO).unwrap().fresh.is_empty());
    let across = range("02:ff:ff:ff:ff:00", "04:00:00:00:00:ff");
    let fresh = |name: &str, object: &mut Book| {
        go(&mut ledger(name, "1"), object, across, 0, Duration::ZERO).unwrap().fresh
    };
    let both = [fresh("c", &mut object), fresh("d", &mut object)].concat();
    assert_eq!(both.into_iter().collect::<BTreeSet<_>>(), [(0x02_ffff_ffff, 1), (0x04_0000_0000, 1)].into());
    assert!(fresh("e", &mut object).is_empty(), "no group addresses");
}

#[test]
fn a_process_that_comes_back_lets_its_former_blocks_settle() {
    let mut object = Book::default();
    let mut first = ledger("a", "1");
    let before = go(&mut first, &mut object, large(), 0, Duration::ZERO).unwrap();
    let mut second = ledger("a", "2");
    let turn = go(&mut second, &mut object, large(), 0, Duration::ZERO).unwrap();
    assert_eq!(turn.settling, before.fresh);
    assert_eq!(count(&turn.fresh), 64);
    assert_eq!(count(&object.replicas["a"].blocks), 128);
    assert_eq!(first.read(object, seconds(1)).unwrap_err().kind(), Kind::Taken);
}

#[test]
fn the_dead_are_taken_over_after_their_lease_and_the_unseen_are_not() {
    let mut object = Book::default();
    let (mut a, mut b) = (ledger("a", "1"), ledger("b", "1"));
    let of_a = go(&mut a, &mut object, large(), 0, Duration::ZERO).unwrap();
    let mut now = Duration::ZERO;
    while now < LEASE {
        let turn = go(&mut b, &mut object, large(), u64::MAX, now);
        assert!(turn.is_none_or(|turn| turn.settling.is_empty()), "{now:?}");
        now += BEAT;
    }
    let turn = go(&mut b, &mut object, large(), u64::MAX, now).unwrap();
    assert_eq!(turn.settling, of_a.fresh);
    assert!(!object.replicas.contains_key("a"));
    // When it comes back it has none, and claims others.
    assert_eq!(a.blocks(), of_a.fresh);
    a.read(object.clone(), now).unwrap();
    assert!(a.blocks().is_empty() && !a.has_line());
    let again = go(&mut a, &mut object, large(), 0, now).unwrap();
    assert!(again.settling.is_empty() && count(&again.fresh) == 64 && a.blocks() == again.fresh);
    // After a gap in reading, nothing is known about others.
    let mut c = ledger("c", "1");
    go(&mut c, &mut object, large(), u64::MAX, now);
    let turn = go(&mut c, &mut object, large(), u64::MAX, now + LEASE * 10).unwrap();
    assert!(turn.settling.is_empty() && object.replicas.contains_key("b"));
}

#[test]
fn blocks_of_a_replica_that_announces_its_end_are_taken_at_once() {
    let mut object = Book::default();
    let (mut a, mut b) = (ledger("a", "1"), ledger("b", "1"));
    assert!(a.leave().is_none(), "it has no line yet");
    let of_a = go(&mut a, &mut object, large(), 0, Duration::ZERO).unwrap();
    go(&mut b, &mut object, large(), 0, Duration::ZERO).unwrap();
    a.read(object.clone(), seconds(1)).unwrap();
    object = Book::parse(&a.leave().unwrap().text()).unwrap();
    let (first, _) = of_a.fresh[0];
    assert!(object.owner(first).is_none(), "nobody is asked about it");
    // Long before its beat is due.
    let turn = go(&mut b, &mut object, large(), u64::MAX, seconds(1)).unwrap();
    assert_eq!(turn.settling, of_a.fresh);
    assert!(!object.replicas.contains_key("a"));
    // One that comes back under its name has not left.
    let mut again = ledger("a", "2");
    go(&mut again, &mut object, large(), 0, seconds(2)).unwrap();
    assert!(!object.replicas["a"].left);
}

#[test]
fn an_object_that_is_lost_is_written_as_it_was() {
    let mut object = Book::default();
    let (mut a, mut b) = (ledger("a", "1"), ledger("b", "1"));
    go(&mut a, &mut object, large(), 0, Duration::ZERO).unwrap();
    go(&mut b, &mut object, large(), 0, Duration::ZERO).unwrap();
    a.read(object.clone(), seconds(1)).unwrap();
    assert_eq!(a.next_change(large(), u64::MAX, 7, seconds(1)), None);
    a.lose(seconds(1));
    let turn = a.next_change(large(), u64::MAX, 7, seconds(1)).unwrap();
    assert_eq!(turn.book.replicas["b"], object.replicas["b"]);
    assert_eq!(turn.book.replicas["a"].blocks, object.replicas["a"].blocks);
    a.wrote(&turn, seconds(1));
    assert_eq!(a.next_change(large(), u64::MAX, 7, seconds(1)), None, "once");
}

#[test]
fn more_than_enough_goes_back() {
    let stock = 1 << 14;
    assert_eq!(enough(large(), stock * 4), stock * 4, "nothing is too much yet");
    assert_eq!(enough(large(), stock * 4 + 1), stock * 2);
    let small = range("02:00:00:00:00:00", "02:00:00:00:00:ff");
    assert_eq!((enough(small, 128), enough(small, 256)), (128, 64));
}

#[test]
fn a_replica_that_cannot_write_allocates_until_the_fence() {
    let mut object = Book::default();
    let mut a = ledger("a", "1");
    go(&mut a, &mut object, large(), 0, seconds(10));
    assert!(a.may_give(seconds(10) + seconds(20)), "an absence of 20 seconds is not noticed");
    assert!(!a.may_give(seconds(10) + FENCE));
    const { assert!(LEASE.as_secs() + SETTLE.as_secs() >= FENCE.as_secs() + 30) };
}

/// The blocks of runs.
fn runs(runs: &[(Block, u64)]) -> BTreeSet<Block> {
    runs.iter().flat_map(|(first, count)| *first..first + count).collect()
}

/// One replica of the random test.
struct Simulated {
    ledger: Ledger,
    /// Its blocks, and from when on they may be used.
    blocks: BTreeMap<Block, Duration>,
    read: bool,
    connected: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Read(usize),
    Write(usize),
    Restart(usize),
    Leave(usize),
    Connect(usize, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (1..8u64).prop_map(Event::Pass),
        4 => (0..3usize).prop_map(Event::Read),
        4 => (0..3usize).prop_map(Event::Write),
        1 => (0..3usize).prop_map(Event::Restart),
        1 => (0..3usize).prop_map(Event::Leave),
        1 => (0..3usize, any::<bool>()).prop_map(|(of, to)| Event::Connect(of, to)),
    ]
}

/// Runs replicas against one object with compare-and-swap.
fn run(events: Vec<Event>) -> Result<(), TestCaseError> {
    let range = range("02:00:00:00:00:00", "02:00:00:00:0f:ff");
    let mut now = Duration::ZERO;
    let (mut object, mut version) = (Book::default(), 0);
    let start = |name: usize, incarnation: usize| Simulated {
        ledger: ledger(&name.to_string(), &incarnation.to_string()),
        blocks: BTreeMap::new(),
        read: false,
        connected: true,
    };
    let mut replicas: Vec<Simulated> = (0..3).map(|name| start(name, 0)).collect();
    let mut seen = [0; 3];
    for (number, event) in events.into_iter().enumerate() {
        match event {
            Event::Pass(some) => now += seconds(some),
            Event::Connect(of, to) => replicas[of].connected = to,
            Event::Restart(of) => replicas[of] = start(of, number + 1),
            Event::Leave(of) if replicas[of].connected && seen[of] == version => {
                if let Some(book) = replicas[of].ledger.leave() {
                    version += 1;
                    object = book;
                }
                replicas[of] = start(of, number + 1);
            }
            Event::Read(of) if replicas[of].connected => {
                seen[of] = version;
                let replica = &mut replicas[of];
                match replica.ledger.read(object.clone(), now) {
                    Ok(()) => {
                        replica.read = true;
                        let line = runs(replica.ledger.blocks());
                        replica.blocks.retain(|block, _| line.contains(block));
                        for block in line {
                            replica.blocks.entry(block).or_insert(now + SETTLE);
                        }
                    }
                    Err(_) => replicas[of] = start(of, number + 1),
                }
            }
            Event::Write(of) if replicas[of].connected && replicas[of].read => {
                let replica = &mut replicas[of];
                let turn = replica.ledger.next_change(range, 0, number as u64, now);
                let Some(mut turn) = turn else { continue };
                // Now and then a block goes back, of which nothing was given.
                let used = replica.blocks.iter().rev().find(|(_, from)| **from <= now);
                if number % 3 == 0
                    && let Some(block) = used.map(|(block, _)| *block)
                {
                    replica.blocks.remove(&block);
                    turn.give_back(&of.to_string(), &[block]);
                }
                if seen[of] != version {
                    continue;
                }
                version += 1;
                object = turn.book.clone();
                // Sometimes the answer is lost: the next reading shows it.
                if number % 5 == 0 {
                    continue;
                }
                seen[of] = version;
                replica.ledger.wrote(&turn, now);
                for (runs, from) in [(&turn.fresh, now), (&turn.settling, now + SETTLE)] {
                    for (first, count) in runs {
                        replica.blocks.extend((*first..first + count).map(|block| (block, from)));
                    }
                }
            }
            Event::Read(_) | Event::Write(_) | Event::Leave(_) => {}
        }
        let mut giving = BTreeSet::new();
        for replica in replicas.iter().filter(|replica| replica.ledger.may_give(now)) {
            for (block, _) in replica.blocks.iter().filter(|(_, from)| **from <= now) {
                prop_assert!(giving.insert(*block), "two give out of {}", block);
            }
        }
    }
    Ok(())
}

#[test]
fn never_do_two_give_out_of_one_block() {
    let cases = if std::env::var_os("FERROVIRT_SOAK").is_some() { 20_000 } else { 200 };
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    runner.run(&vec(event(), 1..150), run).unwrap();
}
