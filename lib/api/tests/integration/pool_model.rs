//! The pool against a model that is a plain list of holds, over random operations: 1 000 000 with FERROVIRT_SOAK=1.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::net::pool::{Block, Owner, Pool, Stamp, View, block_of, bounds};
use api::net::{Mac, Range};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const WAIT: Duration = Duration::from_secs(100);
/// The addresses of the test: four blocks, the last two of them around the end of a first octet.
const BLOCKS: [Block; 4] = [0x02_0000_0000, 0x02_0000_0001, 0x02_ffff_ffff, 0x04_0000_0000];
/// Ranges that cut blocks, leave group addresses out, and have few addresses.
const RANGES: [(&str, &str); 4] = [
    ("02:00:00:00:00:00", "06:00:00:00:00:00"),
    ("02:00:00:00:00:f8", "02:00:00:00:01:03"),
    ("02:ff:ff:ff:ff:fc", "04:00:00:00:00:02"),
    ("02:00:00:00:00:00", "02:00:00:00:00:01"),
];
const OWNERS: usize = 6;
/// Addresses within a block that operations name: few, so that they meet.
const NAMED: u64 = 6;

#[derive(Clone, Debug)]
enum Op {
    Reserve { owner: usize, mac: usize },
    Take { owner: usize, taken: Vec<usize> },
    Observe { owner: usize, age: Option<u64>, macs: Vec<usize> },
    Forget { owner: usize, age: Option<u64> },
    List { present: Vec<usize> },
    Wait { seconds: u64 },
    Range(usize),
    Add { block: usize, settle: u64 },
    Remove { block: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (owner, mac) = (0..OWNERS, 0..BLOCKS.len() * usize::try_from(NAMED).unwrap());
    let macs = vec(mac.clone(), 0..4);
    let age = proptest::option::of(0..6u64);
    prop_oneof![
        4 => (owner.clone(), mac).prop_map(|(owner, mac)| Op::Reserve { owner, mac }),
        6 => (owner.clone(), macs.clone()).prop_map(|(owner, taken)| Op::Take { owner, taken }),
        6 => (owner.clone(), age.clone(), macs).prop_map(|(owner, age, macs)| Op::Observe { owner, age, macs }),
        2 => (owner.clone(), age).prop_map(|(owner, age)| Op::Forget { owner, age }),
        1 => vec(owner, 0..OWNERS).prop_map(|present| Op::List { present }),
        2 => (0..60u64).prop_map(|seconds| Op::Wait { seconds }),
        1 => (0..RANGES.len()).prop_map(Op::Range),
        2 => (0..BLOCKS.len(), 0..30u64).prop_map(|(block, settle)| Op::Add { block, settle }),
        1 => (0..BLOCKS.len()).prop_map(|block| Op::Remove { block }),
    ]
}

fn owner(index: usize) -> Owner {
    // Two of each view; the machine and the instance of one name are one guest.
    let view = [View::Machine, View::Instance, View::Pod][index / 2];
    Owner::new(view, "n", ["a", "b"][index % 2])
}

/// Addresses at the beginning and the end of the blocks.
fn mac(index: usize) -> Mac {
    let (block, place) = (index % BLOCKS.len(), (index / BLOCKS.len()) as u64);
    let (first, last) = bounds(BLOCKS[block]);
    Mac::new(if place % 2 == 0 { first + place / 2 } else { last - place / 2 }).unwrap()
}

fn range(index: usize) -> Range {
    Range::parse(RANGES[index].0, RANGES[index].1).unwrap()
}

/// One reason why an address is not free.
#[derive(Clone, Debug)]
struct Hold {
    owner: usize,
    mac: Mac,
    promise: Option<(Stamp, Duration)>,
}

struct Model {
    range: Range,
    holds: Vec<Hold>,
    own: BTreeMap<Block, Duration>,
    cursor: u64,
    now: Duration,
    stamp: Stamp,
}

impl Model {
    fn holds(&self, mac: Mac) -> usize {
        self.holds.iter().filter(|hold| hold.mac == mac).count()
    }

    fn reserve(&mut self, owner: usize, mac: Mac) {
        self.stamp += 1;
        let promise = Some((self.stamp, self.now + WAIT));
        self.holds.retain(|hold| !(hold.owner == owner && hold.mac == mac && hold.promise.is_some()));
        self.holds.push(Hold { owner, mac, promise });
    }

    fn observe(&mut self, owner: usize, stamp: Option<Stamp>, macs: &[Mac]) {
        self.holds.retain(|hold| {
            hold.owner != owner || hold.promise.is_some_and(|(of, _)| stamp.is_none_or(|stamp| of > stamp))
        });
        self.holds.extend(macs.iter().map(|mac| Hold { owner, mac: *mac, promise: None }));
    }

    fn open(&self, mac: Mac) -> bool {
        let own = self.own.get(&block_of(mac)).is_some_and(|from| *from <= self.now);
        own && self.range.contains(mac) && self.holds(mac) == 0
    }

    /// How many addresses could be given out.
    fn free(&self) -> u64 {
        let held: BTreeSet<Mac> = self.holds.iter().map(|hold| hold.mac).collect();
        let own = self.own.iter().filter(|(_, from)| **from <= self.now).map(|(block, _)| bounds(*block));
        let size: u64 = own.map(|(first, last)| self.range.count(first, last)).sum();
        let own = |mac: &&Mac| self.own.get(&block_of(**mac)).is_some_and(|from| *from <= self.now);
        size - held.iter().filter(|mac| self.range.contains(**mac)).filter(own).count() as u64
    }

    /// The first from the cursor on that is not taken.
    fn find(&self, taken: &[Mac]) -> Option<Mac> {
        let numbers = self.own.keys().flat_map(|block| bounds(*block).0..=bounds(*block).1);
        let macs = numbers.map(|number| Mac::new(number).unwrap());
        let from_cursor = macs.clone().filter(|mac| mac.bits() >= self.cursor).chain(macs);
        let mut open = from_cursor.filter(|mac| self.open(*mac) && !taken.contains(mac));
        open.next()
    }
}

fn agree(pool: &Pool, model: &Model, taken: &[Mac]) -> Result<(), TestCaseError> {
    for index in 0..BLOCKS.len() * usize::try_from(NAMED).unwrap() {
        let mac = mac(index);
        prop_assert_eq!(pool.holders(mac).count(), model.holds(mac), "holders of {}", mac);
        prop_assert_eq!(pool.is_free(mac), model.holds(mac) == 0);
        for asking in 0..OWNERS {
            let other = |hold: &&Hold| hold.mac == mac && !owner(hold.owner).is_family(&owner(asking));
            let expected = model.holds.iter().any(|hold| other(&hold));
            prop_assert_eq!(pool.other_holder(mac, &owner(asking)).is_some(), expected);
        }
    }
    prop_assert_eq!(pool.free(model.now), model.free());
    prop_assert_eq!(pool.find(taken, model.now).ok(), model.find(taken));
    Ok(())
}

fn run(start: (usize, u64), ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (block, offset) = (start.0, start.1);
    let cursor = bounds(BLOCKS[block]).0 + offset;
    let mut pool = Pool::new(range(0), WAIT, cursor);
    let (own, now) = (BTreeMap::new(), Duration::ZERO);
    let mut model = Model { range: range(0), holds: Vec::new(), own, cursor, now, stamp: 0 };
    for op in ops {
        let mut taken = Vec::new();
        match &op {
            Op::Reserve { owner: by, mac: of } => {
                model.reserve(*by, mac(*of));
                pool.reserve(&owner(*by), mac(*of), model.stamp, model.now);
            }
            Op::Take { owner: by, taken: also } => {
                taken = also.iter().map(|index| mac(*index)).collect();
                let found = pool.find(&taken, model.now).ok();
                prop_assert_eq!(found, model.find(&taken));
                if let Some(found) = found {
                    prop_assert!(model.range.contains(found) && pool.has_block(block_of(found)));
                    model.reserve(*by, found);
                    pool.reserve(&owner(*by), found, model.stamp, model.now);
                    pool.advance(found);
                    model.cursor = found.bits() + 1;
                }
            }
            Op::Observe { owner: of, age, macs } => {
                let stamp = age.map(|age| model.stamp.saturating_sub(age));
                let macs: Vec<Mac> = macs.iter().map(|index| mac(*index)).collect();
                model.observe(*of, stamp, &macs);
                pool.observe(&owner(*of), stamp, macs);
            }
            Op::Forget { owner: of, age } => {
                let stamp = age.map(|age| model.stamp.saturating_sub(age));
                model.observe(*of, stamp, &[]);
                pool.forget(&owner(*of), stamp);
            }
            Op::List { present } => {
                // The present objects after the round.
                let views = [View::Machine, View::Instance, View::Pod];
                views.iter().for_each(|view| pool.begin_listing(*view));
                for one in 0..OWNERS {
                    let seen = model.holds.iter().filter(|hold| hold.owner == one && hold.promise.is_none());
                    let seen: Vec<Mac> = seen.map(|hold| hold.mac).collect();
                    if present.contains(&one) {
                        pool.observe(&owner(one), None, seen);
                    } else {
                        model.observe(one, None, &[]);
                    }
                }
                for view in views {
                    pool.end_listing(view);
                }
            }
            Op::Wait { seconds } => {
                model.now += Duration::from_secs(*seconds);
                let now = model.now;
                model.holds.retain(|hold| hold.promise.is_none_or(|(_, until)| until > now));
                pool.expire(now);
            }
            Op::Range(index) => {
                model.range = range(*index);
                pool.set_range(model.range);
            }
            Op::Add { block, settle } => {
                let from = model.now + Duration::from_secs(*settle);
                model.own.entry(BLOCKS[*block]).or_insert(from);
                pool.add_block(BLOCKS[*block], from);
            }
            Op::Remove { block } => {
                model.own.remove(&BLOCKS[*block]);
                pool.remove_block(BLOCKS[*block]);
            }
        }
        agree(&pool, &model, &taken)?;
    }
    // When all are gone and every promise has run out, nothing is left.
    for one in 0..OWNERS {
        pool.forget(&owner(one), None);
    }
    pool.expire(model.now + WAIT);
    prop_assert_eq!(pool.held(), 0);
    prop_assert!((0..OWNERS).all(|one| !pool.knows(&owner(one))));
    Ok(())
}

#[test]
fn the_pool_agrees_with_a_plain_list() {
    let cases = if std::env::var_os("FERROVIRT_SOAK").is_some() { 5000 } else { 100 };
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    let start = (0..BLOCKS.len(), 0..256u64);
    runner.run(&(start, vec(op(), 200..201)), |(start, ops)| run(start, ops)).unwrap();
}
