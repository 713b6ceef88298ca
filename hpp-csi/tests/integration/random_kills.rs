//! The driver killed, or its disk without power, at random moments while several callers make, clone, publish, grow and
//! delete, and started again each time: a model of the pool agrees with it. Nothing half made is listed, nothing that was
//! answered is lost, nothing is left in the end. Few times by default, hundreds with FERROVIRT_SOAK; the same seed gives the
//! same requests.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use csi::*;
use tonic::Status;

use crate::support::place::{Place, mounts};
use crate::support::{
    Client, Driver, GIB, MIB, block, count, from_snapshot, from_volume, mount, one_pool, publish, stage,
    volume,
};

const CALLERS: usize = 6;
/// Volumes that each caller has at most.
const NAMES: u64 = 4;

/// xorshift64: requests are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The expected state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    block: bool,
    bytes: i64,
    /// The content of its file `tag`, for a directory; `None` when the driver was killed while it was written.
    tag: Option<String>,
    published: bool,
}

/// Objects of one client. No other client knows their names.
#[derive(Clone, Debug, Default)]
struct Model {
    volumes: BTreeMap<String, Made>,
    /// Of which tag they are, and how large a volume of theirs is.
    snapshots: BTreeMap<String, (Option<String>, i64)>,
}

#[derive(Clone, Debug)]
enum Call {
    Create(String, bool),
    Clone(String, String),
    Restore(String, String),
    Snapshot(String, String),
    Put(String),
    Take(String),
    Grow(String),
    Delete(String),
    DeleteSnapshot(String),
}

struct Caller<'a> {
    number: usize,
    place: &'a Place,
    random: Random,
    model: Model,
    /// The call without an answer.
    unanswered: Option<Call>,
}

impl Caller<'_> {
    fn target(&self, id: &str) -> PathBuf {
        self.place.beside("pods").join(id)
    }

    fn staging(&self, id: &str) -> PathBuf {
        self.place.beside(&format!("staging-{id}")).join("globalmount")
    }

    /// Something that can be done now.
    fn choose(&mut self) -> Call {
        let number = self.number;
        let id = format!("v{number}-{}", self.random.below(NAMES));
        let snapshot = format!("s{number}-{}", self.random.below(2));
        let source = format!("v{number}-{}", self.random.below(NAMES));
        let what = self.random.below(10);
        match (self.model.volumes.get(&id).cloned(), what) {
            (None, 0..=3) if self.model.volumes.get(&source).is_some_and(|made| !made.block) => {
                Call::Clone(id, source)
            }
            (None, 4..=6) if self.model.snapshots.contains_key(&snapshot) => Call::Restore(id, snapshot),
            (None, _) => Call::Create(id, what.is_multiple_of(3)),
            (Some(made), 0..=3) if made.published => Call::Take(id),
            (Some(_), 0..=3) => Call::Put(id),
            (Some(_), 4 | 5) => Call::Grow(id),
            (Some(made), 6) if !made.block && !self.model.snapshots.contains_key(&snapshot) => {
                Call::Snapshot(snapshot, id)
            }
            (Some(_), 7) if self.model.snapshots.contains_key(&snapshot) => Call::DeleteSnapshot(snapshot),
            (Some(made), _) if made.published => Call::Take(id),
            (Some(_), _) => Call::Delete(id),
        }
    }

    fn create(client: &Client, request: CreateVolumeRequest) -> Result<(), Status> {
        client.create_volume(request).map(drop)
    }

    /// Does it; the model follows when it is answered.
    fn make(&mut self, client: &Client, call: &Call) -> Result<(), Status> {
        let capability = |made: &Made| if made.block { block() } else { mount() };
        match call {
            Call::Create(id, is_block) => {
                let made = Made { block: *is_block, bytes: 4 * MIB, tag: None, published: false };
                Self::create(client, volume(id, made.bytes, capability(&made)))?;
                self.model.volumes.insert(id.clone(), made);
                if !is_block {
                    write_tag(&self.place.pool().join(id), id)
                        .map_err(|error| Status::unknown(error.to_string()))?;
                    self.model.volumes.get_mut(id).unwrap().tag = Some(id.clone());
                }
            }
            Call::Clone(id, source) => {
                let made = Made { published: false, ..self.model.volumes[source].clone() };
                let source = from_volume(source);
                let request = volume(id, made.bytes, mount());
                Self::create(client, CreateVolumeRequest { volume_content_source: source, ..request })?;
                self.model.volumes.insert(id.clone(), made);
            }
            Call::Restore(id, snapshot) => {
                let (tag, bytes) = self.model.snapshots[snapshot].clone();
                let made = Made { block: false, bytes, tag, published: false };
                let request = volume(id, made.bytes, mount());
                let source = from_snapshot(snapshot);
                Self::create(client, CreateVolumeRequest { volume_content_source: source, ..request })?;
                self.model.volumes.insert(id.clone(), made);
            }
            Call::Snapshot(snapshot, id) => {
                let request = CreateSnapshotRequest {
                    name: snapshot.clone(),
                    source_volume_id: id.clone(),
                    ..Default::default()
                };
                let taken = client.create_snapshot(request)?.snapshot.unwrap();
                assert!(taken.ready_to_use);
                let made = &self.model.volumes[id];
                self.model.snapshots.insert(snapshot.clone(), (made.tag.clone(), made.bytes));
            }
            Call::Put(id) => {
                let capability = capability(&self.model.volumes[id]);
                let (staging, target) = (self.staging(id), self.target(id));
                client.node_stage_volume(stage(id, &staging, capability.clone()))?;
                client.node_publish_volume(publish(id, &staging, &target, capability))?;
                self.model.volumes.get_mut(id).unwrap().published = true;
            }
            Call::Take(id) => {
                let text = |path: PathBuf| path.to_str().unwrap().to_owned();
                let target_path = text(self.target(id));
                client.node_unpublish_volume(NodeUnpublishVolumeRequest {
                    volume_id: id.clone(),
                    target_path,
                })?;
                let staging_target_path = text(self.staging(id));
                let request = NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path };
                client.node_unstage_volume(request)?;
                self.model.volumes.get_mut(id).unwrap().published = false;
            }
            Call::Grow(id) => {
                let bytes = self.model.volumes[id].bytes + MIB;
                let request = ControllerExpandVolumeRequest {
                    volume_id: id.clone(),
                    capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
                    ..Default::default()
                };
                client.controller_expand_volume(request)?;
                self.model.volumes.get_mut(id).unwrap().bytes = bytes;
            }
            Call::Delete(id) => {
                client.delete_volume(DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() })?;
                self.model.volumes.remove(id);
            }
            Call::DeleteSnapshot(snapshot) => {
                let request = DeleteSnapshotRequest { snapshot_id: snapshot.clone(), ..Default::default() };
                client.delete_snapshot(request)?;
                self.model.snapshots.remove(snapshot);
            }
        }
        Ok(())
    }

    /// Makes calls until one gets no answer, which must be because the driver is killed. Returns how many were answered.
    fn work(&mut self, client: &Client, killed: &AtomicBool) -> usize {
        for answered in 0.. {
            let call = self.choose();
            if let Err(status) = self.make(client, &call) {
                assert!(killed.load(Ordering::SeqCst), "{call:?}: {status:?}");
                self.unanswered = Some(call);
                return answered;
            }
        }
        unreachable!("it ends only when nobody answers")
    }

    /// Compares the pool with the answers; the unanswered call may have taken effect or not.
    fn agrees(&self, listed: &BTreeMap<String, i64>, snapshots: &[String]) {
        let (mut maybe, mut maybe_snapshot, mut growing) = (None, None, None);
        match &self.unanswered {
            Some(Call::Create(id, _) | Call::Clone(id, _) | Call::Restore(id, _) | Call::Delete(id)) => {
                maybe = Some(id);
            }
            Some(Call::Snapshot(id, _) | Call::DeleteSnapshot(id)) => maybe_snapshot = Some(id),
            Some(Call::Grow(id)) => growing = Some(id),
            Some(Call::Put(_) | Call::Take(_)) | None => {}
        }
        let mine = |prefix: char| format!("{prefix}{}-", self.number);
        for id in listed.keys().filter(|id| id.starts_with(&mine('v'))) {
            assert!(self.model.volumes.contains_key(id) || maybe == Some(id), "{id}: {:?}", self.unanswered);
        }
        for (id, made) in &self.model.volumes {
            let Some(bytes) = listed.get(id) else {
                assert_eq!(maybe, Some(id), "{id} is lost");
                continue;
            };
            let grown = growing == Some(id) && *bytes == made.bytes + MIB;
            assert!(*bytes == made.bytes || grown, "{id}: {bytes} {made:?}");
            if let Some(expected) = &made.tag {
                assert_eq!(read_tag(&self.place.pool().join(id)), *expected, "{id}");
            }
        }
        // A clone that was not answered and is there is whole.
        if let Some(Call::Clone(id, source)) = &self.unanswered
            && listed.contains_key(id)
            && let Some(expected) = &self.model.volumes[source].tag
        {
            assert_eq!(read_tag(&self.place.pool().join(id)), *expected);
        }
        for id in snapshots.iter().filter(|id| id.starts_with(&mine('s'))) {
            assert!(self.model.snapshots.contains_key(id) || maybe_snapshot == Some(id), "{id}");
        }
        for (id, (tag, _)) in &self.model.snapshots {
            if !snapshots.contains(id) {
                assert_eq!(maybe_snapshot, Some(id), "{id} is lost");
                continue;
            }
            if let Some(expected) = tag {
                let data = self.place.pool().join("snapshots").join(id).join("data");
                assert_eq!(read_tag(&data), *expected, "{id}");
            }
        }
        let mounted = mounts(&self.place.beside("pods"));
        for (id, made) in self.model.volumes.iter().filter(|(_, made)| made.published) {
            if !matches!(&self.unanswered, Some(Call::Take(taken)) if taken == id) {
                assert!(mounted.contains(&self.target(id)), "{id} was published");
                if made.block {
                    assert!(fs::metadata(self.target(id)).unwrap().file_type().is_block_device());
                }
            }
        }
    }

    /// Repeats the unanswered call.
    fn settle(&mut self, client: &Client) {
        if let Some(call) = self.unanswered.take() {
            self.make(client, &call).unwrap_or_else(|status| panic!("{call:?}: {status:?}"));
        }
    }
}

/// Writes a volume's tag; when this returns it is on the disk.
fn write_tag(folder: &Path, tag: &str) -> std::io::Result<()> {
    fs::write(folder.join("tag"), tag)?;
    File::open(folder.join("tag"))?.sync_all()?;
    File::open(folder)?.sync_all()
}

fn read_tag(folder: &Path) -> String {
    fs::read_to_string(folder.join("tag")).unwrap()
}

fn listed(client: &Client) -> BTreeMap<String, i64> {
    let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
    let volumes = list.entries.into_iter().filter_map(|entry| entry.volume);
    volumes.map(|volume| (volume.volume_id, volume.capacity_bytes)).collect()
}

/// Lets callers work on a place until the end comes, again and again; in the end all is deleted.
fn ends(times: usize, seed: u64, place: &Place, end: impl Fn(Driver), after: impl Fn(&mut Model)) {
    let mut random = Random(seed);
    let mut callers: Vec<Caller<'_>> = (0..CALLERS)
        .map(|number| Caller {
            number,
            place,
            random: Random(random.below(u64::MAX) + 1),
            model: Model::default(),
            unanswered: None,
        })
        .collect();
    let answered = AtomicUsize::new(0);
    let start = |callers: &mut [Caller<'_>]| -> (Driver, Client) {
        let (driver, client) = one_pool(place, r#","overcommit":100"#);
        let (volumes, snapshots) = (listed(&client), client.snapshots());
        for caller in callers {
            caller.agrees(&volumes, &snapshots);
            caller.settle(&client);
        }
        (driver, client)
    };
    for _ in 0..times {
        let (driver, _client) = start(&mut callers);
        let pause = Duration::from_millis(5 + random.below(150));
        let clients: Vec<Client> = callers.iter().map(|_| driver.client()).collect();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (caller, client) in callers.iter_mut().zip(clients) {
                let (answered, ended) = (&answered, &ended);
                scope.spawn(move || answered.fetch_add(caller.work(&client, ended), Ordering::Relaxed));
            }
            std::thread::sleep(pause);
            ended.store(true, Ordering::SeqCst);
            end(driver);
        });
        callers.iter_mut().for_each(|caller| after(&mut caller.model));
    }
    let (_driver, client) = start(&mut callers);
    for caller in &mut callers {
        for (id, made) in caller.model.volumes.clone() {
            if made.published {
                caller.make(&client, &Call::Take(id.clone())).unwrap();
            }
            caller.make(&client, &Call::Delete(id)).unwrap();
        }
        for id in caller.model.snapshots.clone().into_keys() {
            caller.make(&client, &Call::DeleteSnapshot(id)).unwrap();
        }
    }
    place.is_clean();
    let answered = answered.into_inner();
    println!("{times} ends, {answered} calls answered in between");
    assert!(answered > times, "{answered}");
}

#[test]
fn a_model_agrees_after_every_kill() {
    let place = Place::new("xfs", 4 * GIB);
    ends(count(12, 300), 0x9e37_79b9_7f4a_7c15, &place, Driver::kill, |_| {});
}

/// The pool's filesystem stops and writes nothing more, not even its log: what had not reached the disk by then is lost.
#[test]
fn a_model_agrees_after_every_power_cut() {
    let place = Place::new("xfs", 4 * GIB);
    let cut = |driver: Driver| {
        place.cut_power();
        // Answers before the kill must be correct, or the model notices.
        std::thread::sleep(Duration::from_millis(20));
        driver.kill();
        place.reboot();
        // After a reboot the kubelet sets its pods up from the beginning.
        fs::remove_dir_all(place.beside("pods")).unwrap();
    };
    let nothing_is_published =
        |model: &mut Model| model.volumes.values_mut().for_each(|made| made.published = false);
    ends(count(8, 100), 0x2545_f491_4f6c_dd1d, &place, cut, nothing_is_published);
}
