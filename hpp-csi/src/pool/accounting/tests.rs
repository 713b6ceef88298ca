//! The book against a model of a filesystem with shared blocks, with guests that write and discard, other writers, and a
//! clock of its own: it never answers more than is available.

use std::collections::HashMap;

use super::*;
use crate::config::{Capacity, Reserve};
use crate::plan::room::{Room, admit, is_ample};

/// Blocks of the model's disk; a block is a byte of the book.
const SIZE: u64 = 1000;

/// Numbers that look random (a linear congruence).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// A file or tree of the model: its blocks, by their place in it.
#[derive(Clone, Default, PartialEq, Eq)]
struct Content(BTreeMap<u64, u64>);

/// The disk as it is.
struct Disk {
    volumes: BTreeMap<Id, Content>,
    snapshots: BTreeMap<Id, Content>,
    /// Deleted, and not removed yet.
    trash: Vec<Content>,
    /// How many files have each block.
    owners: HashMap<u64, u32>,
    foreign: u64,
    next: u64,
}

impl Disk {
    fn free(&self) -> u64 {
        SIZE - self.foreign - self.owners.len() as u64
    }

    fn usage(&self, id: &Id) -> Usage {
        let content = &self.volumes[id];
        let owned = content.0.values().filter(|block| self.owners[block] == 1).count() as u64;
        Usage { used: content.0.len() as u64, owned }
    }

    /// Another file has these blocks, too.
    fn hold(&mut self, content: &Content) {
        for block in content.0.values() {
            *self.owners.entry(*block).or_insert(0) += 1;
        }
    }

    /// A file has these blocks no more.
    fn release(&mut self, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            let count = self.owners.get_mut(&block).unwrap();
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&block);
            }
        }
    }

    /// The trash is emptied.
    fn empty(&mut self) {
        for content in std::mem::take(&mut self.trash) {
            self.release(content.0.into_values());
        }
    }
}

/// The model with a book of it.
struct Model {
    disk: Disk,
    book: Arc<Known>,
    dice: Dice,
    now: Duration,
    looks: LookSchedule,
    /// Bytes that each folder owned when it was last looked at: the driver does not see in between what a pod deletes in it.
    folders: HashMap<Id, u64>,
    names: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let disk = Disk {
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            trash: Vec::new(),
            owners: HashMap::new(),
            foreign: 0,
            next: 0,
        };
        Self {
            disk,
            book: Arc::new(Known::of_model()),
            dice: Dice(seed),
            now: Duration::ZERO,
            looks: LookSchedule::since(Duration::ZERO),
            folders: HashMap::new(),
            names: 0,
        }
    }

    fn room(&self) -> Room {
        let mut book = self.book.book();
        // As a pool does before each answer.
        for (id, line) in book.volumes.iter_mut().filter(|(_, line)| line.shape != Shape::Folder) {
            line.follow(self.disk.volumes[id].0.len() as u64);
        }
        Room {
            capacity: Capacity::Request,
            size: SIZE,
            free: self.disk.free(),
            foreign: book.foreign,
            promised: book.promised(),
            outstanding: book.outstanding(),
            others: 0,
            reserve: Reserve::Bytes(50),
            overcommit: 1000,
        }
    }

    /// The room by the promises alone, with bytes that were `free` before: no volume is looked at.
    fn least_room(&self, free: u64) -> Room {
        let promised = self.book.book().promised();
        Room { free, promised, outstanding: promised, ..self.room() }
    }

    /// Contents of folders: nothing keeps them at their size.
    fn of_folders(&self) -> BTreeMap<Id, Content> {
        let book = self.book.book();
        let folders = book.volumes.iter().filter(|(_, line)| line.shape == Shape::Folder);
        folders.map(|(id, _)| (id.clone(), self.disk.volumes[id].clone())).collect()
    }

    fn measure(&mut self, only: Option<&HashSet<Id>>) {
        let mut book = self.book.book();
        for (id, line) in &mut book.volumes {
            if only.is_none_or(|only| only.contains(id)) {
                let usage = self.disk.usage(id);
                line.set_usage(usage);
                self.folders.insert(id.clone(), usage.owned);
            }
        }
    }

    /// Bytes that may be promised in truth; negative when the disk is fuller than what is promised.
    fn truth(&self) -> i64 {
        let mut bound = i64::try_from(self.disk.free()).unwrap() - 50;
        for (id, line) in &self.book.book().volumes {
            let capacity = line.record.as_ref().unwrap().capacity;
            let mut owned = self.disk.usage(id).owned;
            if line.shape == Shape::Folder {
                owned = owned.max(self.folders.get(id).copied().unwrap_or(0));
            }
            bound -= i64::try_from(capacity.saturating_sub(owned)).unwrap();
        }
        bound
    }

    fn name(&mut self) -> Id {
        self.names += 1;
        Id::read(&format!("v{}", self.names)).unwrap()
    }

    fn any<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let at = usize::try_from(self.dice.below(of.len() as u64)).unwrap();
        of.get(at).cloned()
    }

    fn any_volume(&mut self) -> Option<Id> {
        let ids: Vec<Id> = self.disk.volumes.keys().cloned().collect();
        self.any(&ids)
    }

    fn create(&mut self) {
        let shape = [Shape::Folder, Shape::Loop, Shape::Block][usize::try_from(self.dice.below(3)).unwrap()];
        let capacity = 1 + self.dice.below(120);
        if admit("p", &self.room(), capacity).is_err() {
            return;
        }
        let id = self.name();
        self.disk.volumes.insert(id.clone(), Content::default());
        self.book.book().note_made(&id, &Record::new(shape, capacity, 0), 0, 0);
    }

    fn clone_of(&mut self) {
        let Some(source) = self.any_volume() else { return };
        let (record, shared) = {
            let book = self.book.book();
            let line = &book.volumes[&source];
            (line.record.clone().unwrap(), line.to_share())
        };
        let capacity = record.capacity + self.dice.below(20);
        if admit("p", &self.room(), capacity + shared).is_err() {
            return;
        }
        let id = self.name();
        let content = self.disk.volumes[&source].clone();
        self.disk.hold(&content);
        let used = content.0.len() as u64;
        self.disk.volumes.insert(id.clone(), content);
        let of = Some(RecordSource::Volume(source.to_string()));
        let mut book = self.book.book();
        book.note_made(&id, &Record { capacity, source: of, ..record }, used, 0);
        book.note_shared(source.as_str(), used);
        self.folders.insert(source, 0);
    }

    fn restore(&mut self) {
        let ids: Vec<Id> = self.disk.snapshots.keys().cloned().collect();
        let Some(snapshot) = self.any(&ids) else { return };
        let of = self.book.book().snapshots[&snapshot].clone();
        if admit("p", &self.room(), of.capacity).is_err() {
            return;
        }
        let id = self.name();
        let content = self.disk.snapshots[&snapshot].clone();
        self.disk.hold(&content);
        let used = content.0.len() as u64;
        self.disk.volumes.insert(id.clone(), content);
        let source = Some(RecordSource::Snapshot(snapshot.to_string()));
        let record = Record { source, ..Record::new(of.shape, of.capacity, 0) };
        self.book.book().note_made(&id, &record, used, 0);
    }

    fn snapshot(&mut self) {
        let Some(source) = self.any_volume() else { return };
        let (shape, capacity, shared) = {
            let book = self.book.book();
            let line = &book.volumes[&source];
            (line.shape, line.record.as_ref().unwrap().capacity, line.to_share())
        };
        if admit("p", &self.room(), shared).is_err() {
            return;
        }
        let id = self.name();
        let content = self.disk.volumes[&source].clone();
        self.disk.hold(&content);
        let record = SnapshotRecord::new(&source, shape, capacity, content.0.len() as u64);
        self.disk.snapshots.insert(id.clone(), content);
        self.book.book().note_snapshot(&id, &record, true);
        self.folders.insert(source, 0);
    }

    fn expand(&mut self) {
        let Some(id) = self.any_volume() else { return };
        let more = 1 + self.dice.below(50);
        if admit("p", &self.room(), more).is_err() {
            return;
        }
        let mut book = self.book.book();
        let line = &book.volumes[&id];
        let mut record = line.record.clone().unwrap();
        record.capacity += more;
        let shape = line.shape;
        book.note_volume(&id, Some(record), shape);
    }

    /// A guest writes: over blocks that it has, or into holes. Nothing keeps a folder at its size.
    fn write(&mut self) {
        let Some(id) = self.any_volume() else { return };
        let (capacity, shape) = {
            let book = self.book.book();
            let line = &book.volumes[&id];
            (line.record.as_ref().unwrap().capacity, line.shape)
        };
        let end = if shape == Shape::Folder { capacity + 20 } else { capacity };
        for _ in 0..self.dice.below(30) {
            let place = self.dice.below(end);
            let before = self.disk.volumes[&id].0.get(&place).copied();
            if before.is_some_and(|block| self.disk.owners[&block] == 1) {
                continue;
            }
            if self.disk.free() == 0 {
                return;
            }
            self.disk.next += 1;
            let block = self.disk.next;
            self.disk.owners.insert(block, 1);
            let over = self.disk.volumes.get_mut(&id).unwrap().0.insert(place, block);
            self.disk.release(over);
        }
    }

    fn discard(&mut self) {
        let Some(id) = self.any_volume() else { return };
        let keep = self.dice.below(4);
        let content = &mut self.disk.volumes.get_mut(&id).unwrap().0;
        let (kept, gone) = std::mem::take(content).into_iter().partition(|(place, _)| place % 4 < keep);
        *content = kept;
        let gone: BTreeMap<u64, u64> = gone;
        self.disk.release(gone.into_values());
    }

    fn delete(&mut self) {
        if self.dice.below(2) == 0 {
            let Some(id) = self.any_volume() else { return };
            self.disk.trash.extend(self.disk.volumes.remove(&id));
            self.book.book().remove_volume(&id);
            self.folders.remove(&id);
        } else {
            let ids: Vec<Id> = self.disk.snapshots.keys().cloned().collect();
            let Some(id) = self.any(&ids) else { return };
            self.disk.trash.extend(self.disk.snapshots.remove(&id));
            self.book.book().remove_snapshot(&id);
        }
    }

    /// A round of the worker.
    fn round(&mut self) {
        self.disk.empty();
        if self.looks.is_due(self.now) {
            self.measure(None);
            self.looks.done(self.now, Duration::from_millis(self.dice.below(5000)));
        } else if self.book.book().look_again() {
            let sharing = self.book.book().sharing();
            self.measure(Some(&sharing));
        }
    }

    fn step(&mut self) {
        match self.dice.below(14) {
            0 | 1 => self.create(),
            2 => self.clone_of(),
            3 => self.restore(),
            4 => self.snapshot(),
            5 => self.expand(),
            6..=8 => self.write(),
            9 => self.discard(),
            10 => self.delete(),
            11 => {
                // Others write and delete as they like.
                self.disk.foreign = self.disk.foreign.saturating_sub(self.dice.below(30));
                self.disk.foreign += self.dice.below(30).min(self.disk.free());
            }
            12 => self.round(),
            _ => self.now += Duration::from_secs(self.dice.below(100)),
        }
    }
}

#[test]
fn no_more_is_available_than_is_free_and_not_promised() {
    let times = if std::env::var_os("FERROVIRT_SOAK").is_some() { 10_000 } else { 200 };
    let (mut promised, mut clones) = (0, 0);
    for seed in 0..times {
        let mut model = Model::new(seed);
        for step in 0..120 {
            model.step();
            let available = i64::try_from(model.room().available()).unwrap();
            let truth = model.truth();
            assert!(available <= truth.max(0), "seed {seed}, step {step}: {available} of {truth}");
            promised += usize::from(available > 0);
        }
        clones += model.book.book().sharing().len();
        // All freed blocks are available as soon as they are free and looked at.
        model.disk.empty();
        model.measure(None);
        let available = i64::try_from(model.room().available()).unwrap();
        assert_eq!(available, model.truth().max(0), "seed {seed}");
    }
    let steps = usize::try_from(times).unwrap() * 120;
    assert!(
        promised > steps / 4 && clones > steps / 240,
        "{promised} and {clones} of {steps}: the model proves nothing"
    );
}

/// Free bytes are those of before the last change, by the driver or by a device; no volume was looked at since.
#[test]
fn promises_alone_never_allow_more_than_there_is() {
    let times = if std::env::var_os("FERROVIRT_SOAK").is_some() { 2_000 } else { 100 };
    let mut ample = 0;
    for seed in 0..times {
        let mut model = Model::new(seed);
        for step in 0..120 {
            let (free, foreign, folders) = (model.disk.free(), model.disk.foreign, model.of_folders());
            model.step();
            let written = |(id, before): (&Id, &Content)| {
                model.disk.volumes.get(id).is_some_and(|content| content != before)
            };
            if model.disk.foreign > foreign || folders.iter().any(written) {
                continue;
            }
            let new = 1 + model.dice.below(SIZE / 4);
            if is_ample(&model.least_room(free), new) {
                let truth = model.truth();
                assert!(i64::try_from(new).unwrap() <= truth, "seed {seed}, step {step}: {new} of {truth}");
                ample += 1;
            }
            let now = model.least_room(model.disk.free());
            assert!(
                !is_ample(&now, new) || admit("p", &model.room(), new).is_ok(),
                "seed {seed}, step {step}"
            );
        }
    }
    assert!(ample > times, "{ample}: the model proves nothing");
}

#[test]
fn a_volume_that_outgrew_its_size_counts_with_what_it_uses() {
    let mut book = Accounting::default();
    let id = Id::read("v").unwrap();
    book.note_made(&id, &Record::new(Shape::Folder, 100, 0), 0, 0);
    assert_eq!((book.promised(), book.outstanding()), (100, 100));
    book.volumes.get_mut(&id).unwrap().set_usage(Usage { used: 60, owned: 60 });
    assert_eq!((book.promised(), book.outstanding()), (100, 40));
    book.volumes.get_mut(&id).unwrap().set_usage(Usage { used: 150, owned: 150 });
    assert_eq!((book.promised(), book.outstanding()), (150, 0));
}

/// Promises may be made without a look at the volume: what it wrote before it was shared is seen after that.
#[test]
fn bytes_written_before_a_volume_is_shared_are_not_its_own() {
    let (id, snapshot) = (Id::read("v").unwrap(), Id::read("s").unwrap());
    for shape in [Shape::Block, Shape::Loop] {
        for is_cloned in [false, true] {
            let mut book = Accounting::default();
            book.note_made(&id, &Record::new(shape, 100, 0), 0, 0);
            if is_cloned {
                book.note_shared(id.as_str(), 60);
            } else {
                book.note_snapshot(&snapshot, &SnapshotRecord::new(&id, shape, 100, 60), true);
            }
            for (used, outstanding) in [(60, 100), (75, 85)] {
                book.volumes.get_mut(&id).unwrap().follow(used);
                assert_eq!(book.outstanding(), outstanding, "{shape:?}, cloned: {is_cloned}, {used} used");
            }
        }
    }
}

#[test]
fn looks_are_the_rarer_the_longer_they_take() {
    let seconds = Duration::from_secs;
    let mut looks = LookSchedule::since(seconds(0));
    assert!(!looks.is_due(seconds(59)) && looks.is_due(seconds(60)));
    looks.done(seconds(100), seconds(1));
    assert!(!looks.is_due(seconds(159)) && looks.is_due(seconds(160)));
    looks.done(seconds(200), seconds(10));
    assert!(!looks.is_due(seconds(699)) && looks.is_due(seconds(700)));
}
