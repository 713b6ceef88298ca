//! The owner of each address, and the next free one. Pure: nothing here reads a clock or calls other code.
//!
//! ```text
//!  admission ──reserve──► pending ──the object is seen, or time passes──► gone
//!  watch ─────observe───► seen ─────the object changes, or is deleted───► gone
//!                            └──────────┬─────────┘
//!                              holders: address → owners, counted
//! ```
//!
//! An address is free when no owner holds it, in range or not, seen or pending. Allocation takes addresses from this pool's
//! blocks, in the range, in the order of addresses from a cursor on, so that a released address comes back late. A block is
//! named by the upper 40 bits of its addresses, regardless of the range: editing the range moves no block.
//!
//! Not here: ownership of the blocks, the form of objects: macpool's.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Mac, Range};

/// Bits of an address below its block's name.
pub const BLOCK_BITS: u32 = 8;

/// The name of a block: the upper 40 bits of its addresses.
pub type Block = u64;

/// The time of a transaction's admission: nanoseconds since 1970, from its object's annotation.
pub type Stamp = u64;

/// The block of an address.
pub fn block_of(mac: Mac) -> Block {
    mac.bits() >> BLOCK_BITS
}

/// The lowest and the highest number of a block.
pub fn bounds(block: Block) -> (u64, u64) {
    let first = block << BLOCK_BITS;
    (first, first | ((1 << BLOCK_BITS) - 1))
}

/// Through which kind of object an owner holds addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// A VirtualMachine.
    Machine,
    /// A VirtualMachineInstance.
    Instance,
    /// A Pod.
    Pod,
}

/// An object that holds addresses. Two are equal when view, namespace and name are.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its kind.
    pub view: View,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name; see [`Owner::unnamed`] for one that has none yet.
    pub name: Box<str>,
    /// For a pod in which a guest runs: the name of the instance.
    pub guest: Option<Box<str>>,
}

impl Owner {
    /// The object of this view, namespace and name.
    pub fn new(view: View, namespace: &str, name: &str) -> Self {
        Self { view, namespace: namespace.into(), name: name.into(), guest: None }
    }

    /// An object that the API server will name by a prefix, identified by the review's uid. "~" is in no name.
    pub fn unnamed(view: View, namespace: &str, prefix: &str, uid: &str) -> Self {
        Self::new(view, namespace, &format!("{prefix}~{uid}"))
    }

    /// Whether both are the same guest, or the same pod: a machine, its instance and that one's pods share addresses.
    pub fn is_family(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.guest() == other.guest() && {
            self.guest().is_some() || self == other
        }
    }

    fn guest(&self) -> Option<&str> {
        match self.view {
            View::Machine | View::Instance => Some(&self.name),
            View::Pod => self.guest.as_deref(),
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (self.view, &self.namespace, &self.name) == (other.view, &other.namespace, &other.name)
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.view, &self.namespace, &self.name).hash(state);
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = match self.view {
            View::Machine => "VirtualMachine",
            View::Instance => "VirtualMachineInstance",
            View::Pod => "Pod",
        };
        write!(f, "{view} {}/{}", self.namespace, self.name)
    }
}

/// No address is free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no MAC address is free: the range {range} has {} addresses{hope}", range.size())]
pub struct Exhausted {
    range: Range,
    /// A hint why, as the end of the message.
    hope: &'static str,
}

/// The addresses of one object.
#[derive(Debug, Default)]
struct Object {
    seen: Vec<Mac>,
    pending: Vec<Pending>,
    /// A machine that is there is known, whether it has addresses or not.
    present: bool,
    /// The last listing in which it was.
    listing: u32,
}

/// An address that was promised to an object that is not seen with it yet.
#[derive(Debug)]
struct Pending {
    mac: Mac,
    stamp: Stamp,
    until: Duration,
}

/// The pool. Times are since the program's start.
#[derive(Debug)]
pub struct Pool {
    range: Range,
    wait: Duration,
    cursor: u64,
    /// This replica's blocks, and from when on addresses are given out of each.
    own: BTreeMap<Block, Duration>,
    holders: HashMap<Mac, Vec<Arc<Owner>>>,
    /// The number of usable addresses in use, by block.
    held: HashMap<Block, u64>,
    objects: HashMap<Arc<Owner>, Object>,
    /// When which owner's promises may have run out, in order.
    expiry: VecDeque<(Duration, Arc<Owner>)>,
    /// The number of the last listing of each view.
    listings: [u32; 3],
}

impl Pool {
    /// An empty pool without blocks. `wait` is how long a promise is kept that no object redeems; `cursor` is where
    /// giving out begins, any number.
    pub fn new(range: Range, wait: Duration, cursor: u64) -> Self {
        Self {
            range,
            wait,
            cursor,
            own: BTreeMap::new(),
            holders: HashMap::new(),
            held: HashMap::new(),
            objects: HashMap::new(),
            expiry: VecDeque::new(),
            listings: [0; 3],
        }
    }

    /// A pool with a range of its own: it owns all blocks. Memory is that of one entry per block, so the
    /// range should not have more than some 2^24 addresses, as a default one has.
    pub fn alone(range: Range, wait: Duration, cursor: u64) -> Self {
        let mut pool = Self::new(range, wait, cursor);
        for block in block_of(range.first())..=block_of(range.last()) {
            pool.add_block(block, Duration::ZERO);
        }
        pool
    }

    /// Where addresses are given out of.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Changes the range. No owner loses an address, and no block changes hands.
    pub fn set_range(&mut self, range: Range) {
        self.range = range;
    }

    /// Makes a block this pool's, to give out of from a time on. One that it already has stays as it is.
    pub fn add_block(&mut self, block: Block, from: Duration) {
        self.own.entry(block).or_insert(from);
    }

    /// Removes a block. Its addresses stay with their owners.
    pub fn remove_block(&mut self, block: Block) {
        self.own.remove(&block);
    }

    /// Takes all blocks away but those that are to be kept.
    pub fn retain_blocks(&mut self, keep: impl Fn(Block) -> bool) {
        self.own.retain(|block, _| keep(*block));
    }

    /// At most `most` blocks that can be released, in order: they are this pool's, none of their addresses is in use, and
    /// without them `keep` addresses remain. All outside the range qualify; none in quarantine: its former owner may still
    /// allocate from it.
    pub fn spare(&self, keep: u64, most: usize, now: Duration) -> Vec<Block> {
        let mut surplus = self.free(now).saturating_sub(keep);
        let unheld = self.own.iter().filter(|(block, _)| !self.held.contains_key(block));
        let goes = |(block, usable): (&Block, &Duration)| {
            let (first, last) = bounds(*block);
            let size = self.range.count(first, last);
            let goes = *usable <= now && size <= surplus;
            if goes {
                surplus -= size;
            }
            goes.then_some(*block)
        };
        unheld.filter_map(goes).take(most).collect()
    }

    /// Whether a block is this pool's.
    pub fn has_block(&self, block: Block) -> bool {
        self.own.contains_key(&block)
    }

    /// How many addresses could be given out now.
    pub fn free(&self, now: Duration) -> u64 {
        self.own.iter().filter(|(_, from)| **from <= now).map(|(block, _)| self.room(*block)).sum()
    }

    /// The number of free addresses in a block. At the edge of the range the block's other addresses, outside, may be
    /// held too: they are counted one by one there.
    fn room(&self, block: Block) -> u64 {
        let (first, last) = bounds(block);
        let size = self.range.count(first, last);
        if size == 1 << BLOCK_BITS {
            return size.saturating_sub(self.held.get(&block).copied().unwrap_or(0));
        }
        let held = (first..=last).filter_map(Mac::new);
        let held = held.filter(|mac| self.range.contains(*mac) && self.holders.contains_key(mac)).count();
        size.saturating_sub(held as u64)
    }

    /// The number of addresses in use.
    pub fn held(&self) -> usize {
        self.holders.len()
    }

    /// Whether an address is free.
    pub fn is_free(&self, mac: Mac) -> bool {
        !self.holders.contains_key(&mac)
    }

    /// Another owner than this guest or pod of an address.
    pub fn other_holder(&self, mac: Mac, owner: &Owner) -> Option<&Owner> {
        self.holders(mac).find(|holder| !holder.is_family(owner))
    }

    /// All owners of an address, once for each use.
    pub fn holders(&self, mac: Mac) -> impl Iterator<Item = &Owner> {
        self.holders.get(&mac).into_iter().flatten().map(AsRef::as_ref)
    }

    /// How many addresses have several owners that are not of one family.
    pub fn shared(&self) -> usize {
        let shared = |holders: &&Vec<Arc<Owner>>| {
            holders
                .split_first()
                .is_some_and(|(first, others)| others.iter().any(|one| !one.is_family(first)))
        };
        self.holders.values().filter(shared).count()
    }

    /// Whether an object holds anything, or is a machine that is there.
    pub fn knows(&self, owner: &Owner) -> bool {
        self.objects.contains_key(owner)
    }

    /// The next free address from the cursor on that is not `taken` already. Nothing changes.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, taken: &[Mac], now: Duration) -> Result<Mac, Exhausted> {
        let cursor = self.cursor;
        let start = cursor >> BLOCK_BITS;
        // The cursor's own block comes twice: from the cursor on first, from its beginning on last.
        let from_cursor = self.own.range(start..).map(|(block, usable)| (*block, *usable, cursor));
        let wrapped = self.own.range(..=start).map(|(block, usable)| (*block, *usable, 0));
        for (block, usable, from) in from_cursor.chain(wrapped) {
            if usable > now || self.room(block) == 0 {
                continue;
            }
            let (first, last) = bounds(block);
            let mut from = from.max(first);
            while let Some(mac) = self.range.next(from).filter(|mac| mac.bits() <= last) {
                if self.is_free(mac) && !taken.contains(&mac) {
                    return Ok(mac);
                }
                from = mac.bits() + 1;
            }
        }
        Err(self.exhausted(now))
    }

    fn exhausted(&self, now: Duration) -> Exhausted {
        let hope = if self.own.values().any(|from| *from > now) {
            "; some belong to a replica that has just ended, and will be free soon"
        } else if self.own.is_empty() {
            ", and other replicas have them all"
        } else {
            ""
        };
        Exhausted { range: self.range, hope }
    }

    /// The next address to be given out is behind this one.
    pub fn advance(&mut self, past: Mac) {
        self.cursor = past.bits() + 1;
    }

    /// Promises an address to an object that is about to be written with this stamp. Promised again, it is kept longer.
    pub fn reserve(&mut self, owner: &Owner, mac: Mac, stamp: Stamp, now: Duration) {
        let until = now + self.wait;
        let owner = self.known(owner);
        let object = self.objects.entry(owner.clone()).or_default();
        self.expiry.push_back((until, owner.clone()));
        match object.pending.iter_mut().find(|pending| pending.mac == mac) {
            Some(pending) => {
                pending.stamp = pending.stamp.max(stamp);
                pending.until = until;
            }
            None => {
                object.pending.push(Pending { mac, stamp, until });
                self.hold(mac, &owner);
            }
        }
    }

    /// An object is there with these addresses. Its promises up to `stamp` are redeemed or superseded; without a stamp
    /// they stay until they run out.
    pub fn observe(&mut self, owner: &Owner, stamp: Option<Stamp>, macs: Vec<Mac>) {
        self.see(owner, stamp, macs, owner.view == View::Machine);
    }

    fn see(&mut self, owner: &Owner, stamp: Option<Stamp>, macs: Vec<Mac>, present: bool) {
        if macs.is_empty() && !present && !self.knows(owner) {
            return;
        }
        let owner = self.known(owner);
        let object = self.objects.entry(owner.clone()).or_default();
        object.present = present;
        object.listing = self.listings[owner.view as usize];
        let before = std::mem::replace(&mut object.seen, macs.clone());
        let settled = object.settle(stamp);
        for mac in macs {
            self.hold(mac, &owner);
        }
        for mac in before.into_iter().chain(settled) {
            self.release(mac, &owner);
        }
        self.tidy(&owner);
    }

    /// An object is named now that had no name when it was reviewed: promises of these addresses to an object of this
    /// view and namespace without a name, and with this prefix, are its own.
    pub fn named(&mut self, owner: &Owner, prefix: &str, macs: &[Mac]) {
        let unnamed = format!("{prefix}~");
        for mac in macs {
            let promised = self.holders.get(mac).into_iter().flatten().find(|holder| {
                holder.view == owner.view
                    && holder.namespace == owner.namespace
                    && holder.name.starts_with(&unnamed)
            });
            let Some(promised) = promised.cloned() else { continue };
            let Some(object) = self.objects.get_mut(&promised) else { continue };
            object.pending.retain(|pending| pending.mac != *mac);
            self.release(*mac, &promised);
            self.tidy(&promised);
        }
    }

    /// An object is gone. Promises with a later stamp are for one that is about to come with the same name; they stay.
    pub fn forget(&mut self, owner: &Owner, stamp: Option<Stamp>) {
        self.see(owner, stamp, Vec::new(), false);
    }

    /// A new listing of a view's objects begins: what is not observed before [`Pool::end_listing`] is gone.
    pub fn begin_listing(&mut self, view: View) {
        let listing = &mut self.listings[view as usize];
        *listing = listing.wrapping_add(1);
    }

    /// A listing of all objects of a view is complete. Gives those that are gone.
    pub fn end_listing(&mut self, view: View) -> Vec<Arc<Owner>> {
        let gone = self.objects.iter().filter(|(owner, object)| {
            owner.view == view
                && object.listing != self.listings[view as usize]
                && (object.present || !object.seen.is_empty())
        });
        let gone: Vec<_> = gone.map(|(owner, _)| owner.clone()).collect();
        for owner in &gone {
            self.forget(owner, None);
        }
        gone
    }

    /// Lets promises go that have run out. Gives how many.
    pub fn expire(&mut self, now: Duration) -> usize {
        let mut count = 0;
        while let Some((_, owner)) = self.expiry.pop_front_if(|(until, _)| *until <= now) {
            let Some(object) = self.objects.get_mut(&owner) else { continue };
            let mut over = Vec::new();
            object.pending.retain(|pending| {
                let stays = pending.until > now;
                if !stays {
                    over.push(pending.mac);
                }
                stays
            });
            count += over.len();
            for mac in over {
                self.release(mac, &owner);
            }
            self.tidy(&owner);
        }
        count
    }

    /// The owner as it is shared already.
    fn known(&self, owner: &Owner) -> Arc<Owner> {
        match self.objects.get_key_value(owner) {
            Some((known, _)) if known.guest == owner.guest => known.clone(),
            Some(_) | None => Arc::new(owner.clone()),
        }
    }

    fn hold(&mut self, mac: Mac, owner: &Arc<Owner>) {
        let holders = self.holders.entry(mac).or_insert_with(|| Vec::with_capacity(1));
        holders.push(owner.clone());
        if holders.len() == 1 && mac.is_usable() {
            *self.held.entry(block_of(mac)).or_default() += 1;
        }
    }

    /// One time less of an owner holding an address.
    fn release(&mut self, mac: Mac, owner: &Owner) {
        let Some(holders) = self.holders.get_mut(&mac) else { return };
        let Some(at) = holders.iter().position(|holder| **holder == *owner) else { return };
        holders.swap_remove(at);
        if holders.is_empty() {
            self.holders.remove(&mac);
            if let Some(held) = self.held.get_mut(&block_of(mac)).filter(|_| mac.is_usable()) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(&block_of(mac));
                }
            }
        }
    }

    fn tidy(&mut self, owner: &Owner) {
        if self.objects.get(owner).is_some_and(Object::is_empty) {
            self.objects.remove(owner);
        }
    }
}

impl Object {
    fn is_empty(&self) -> bool {
        !self.present && self.seen.is_empty() && self.pending.is_empty()
    }

    /// Takes out the promises up to a stamp.
    fn settle(&mut self, stamp: Option<Stamp>) -> Vec<Mac> {
        let Some(stamp) = stamp else { return Vec::new() };
        let mut settled = Vec::new();
        self.pending.retain(|pending| {
            let stays = pending.stamp > stamp;
            if !stays {
                settled.push(pending.mac);
            }
            stays
        });
        settled
    }
}
