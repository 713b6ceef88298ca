//! The interrupted calls: a table of calls, each with its initial state, its invariants after an interruption, and its
//! result after a repetition.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi::*;
use tonic::Status;

use crate::support::place::Place;
use crate::support::{
    Client, MIB, block, from_snapshot, from_volume, mount, names, parameters, publish, stage, volume,
    when_unused,
};

/// Lets the thread that took a call wait for the next one, so that it takes that, too.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(3));
}

/// Where a case happens.
pub(crate) struct At<'a> {
    pub(crate) client: &'a Client,
    pub(crate) place: &'a Place,
}

/// A call and what surrounds it. What is made is always called `v`, or `s` when it is a snapshot, from `golden`.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// More keys of the pool.
    pub(crate) pool: &'static str,
    pub(crate) before: fn(&At<'_>),
    pub(crate) call: fn(&At<'_>) -> Result<(), Status>,
    /// Whether what is to be seen of `v` and `s` in the pool's folder is whole; also right after a kill.
    pub(crate) whole: fn(&Path),
    /// The state after the call was repeated.
    pub(crate) after: fn(&At<'_>),
}

const LOOP: &str = r#","enforce":"loop""#;
/// A pod's own volume.
pub(crate) const INLINE: &str = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

impl At<'_> {
    fn staging(&self, id: &str) -> PathBuf {
        self.place.beside(&format!("staging-{id}")).join("globalmount")
    }

    fn target(&self, id: &str) -> PathBuf {
        self.place.beside("pods").join(id)
    }

    /// Stages and publishes.
    fn mount(&self, id: &str, capability: VolumeCapability) -> Result<(), Status> {
        let (staging, target) = (self.staging(id), self.target(id));
        self.client.node_stage_volume(stage(id, &staging, capability.clone()))?;
        pause();
        self.client.node_publish_volume(publish(id, &staging, &target, capability)).map(drop)
    }

    /// Unpublishes and unstages.
    fn unmount(&self, id: &str) -> Result<(), Status> {
        self.leave(id)?;
        pause();
        let staging_target_path = self.staging(id).to_str().unwrap().to_owned();
        let request = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        self.client.node_unstage_volume(request).map(drop)
    }

    /// Unpublishes: all that a pod's own volume needs.
    fn leave(&self, id: &str) -> Result<(), Status> {
        let target_path = self.target(id).to_str().unwrap().to_owned();
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path };
        self.client.node_unpublish_volume(request).map(drop)
    }

    fn make(&self, request: CreateVolumeRequest) -> Result<(), Status> {
        self.client.create_volume(request).map(drop)
    }

    fn delete(&self, id: &str) -> Result<(), Status> {
        self.client
            .delete_volume(DeleteVolumeRequest { volume_id: id.into(), ..Default::default() })
            .map(drop)
    }

    fn snapshot(&self) -> Result<(), Status> {
        let request = CreateSnapshotRequest {
            name: "s".into(),
            source_volume_id: "golden".into(),
            ..Default::default()
        };
        self.client.create_snapshot(request).map(drop)
    }

    fn delete_snapshot(&self) -> Result<(), Status> {
        let request = DeleteSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
        self.client.delete_snapshot(request).map(drop)
    }

    fn group(&self) -> Result<(), Status> {
        let request = CreateVolumeGroupSnapshotRequest {
            name: "g".into(),
            source_volume_ids: vec!["golden".into(), "v".into()],
            ..Default::default()
        };
        self.client.create_volume_group_snapshot(request).map(drop)
    }

    fn delete_group(&self) -> Result<(), Status> {
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "g".into(),
            snapshot_ids: grouped(&self.place.pool()),
            ..Default::default()
        };
        self.client.delete_volume_group_snapshot(request).map(drop)
    }

    fn inline(&self) -> Result<(), Status> {
        let context = parameters(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "16Mi")]);
        let target = self.target(INLINE);
        let request = publish(INLINE, Path::new(""), &target, mount());
        self.client
            .node_publish_volume(NodePublishVolumeRequest { volume_context: context, ..request })
            .map(drop)
    }

    /// Grows `v`, which is in use.
    fn expand(&self, bytes: i64) -> Result<(), Status> {
        let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
        let request =
            ControllerExpandVolumeRequest { volume_id: "v".into(), capacity_range, ..Default::default() };
        let answer = self.client.controller_expand_volume(request)?;
        if answer.node_expansion_required {
            pause();
            let path = self.target("v").to_str().unwrap().to_owned();
            let request = NodeExpandVolumeRequest {
                volume_id: "v".into(),
                volume_path: path,
                capacity_range,
                ..Default::default()
            };
            self.client.node_expand_volume(request)?;
        }
        Ok(())
    }

    /// Takes everything away.
    pub(crate) fn undo(&self) {
        self.delete_group().unwrap();
        for id in ["v", "golden", INLINE] {
            when_unused(|| self.unmount(id));
            self.delete(id).unwrap();
        }
        self.delete_snapshot().unwrap();
    }
}

fn golden_folder(at: &At<'_>) {
    at.make(volume("golden", MIB, mount())).unwrap();
    let golden = at.place.pool().join("golden");
    fs::create_dir(golden.join("a")).unwrap();
    fs::write(golden.join("a/file"), "content").unwrap();
    fs::hard_link(golden.join("a/file"), golden.join("again")).unwrap();
    std::os::unix::fs::symlink("a", golden.join("link")).unwrap();
    rustix::fs::setxattr(golden.join("again"), "user.x", b"y", rustix::fs::XattrFlags::empty()).unwrap();
}

fn golden_folders(at: &At<'_>) {
    golden_folder(at);
    at.make(clone_of_golden(MIB, mount())).unwrap();
}

fn is_golden_folder(folder: &Path) {
    assert_eq!(names(folder), ["a", "again", "link"]);
    for file in ["a/file", "again", "link/file"] {
        assert_eq!(fs::read_to_string(folder.join(file)).unwrap(), "content");
    }
    let mut value = [0; 1];
    rustix::fs::getxattr(folder.join("a/file"), "user.x", &mut value).unwrap();
}

fn golden_block(at: &At<'_>) {
    at.make(volume("golden", 16 * MIB, block())).unwrap();
    at.mount("golden", block()).unwrap();
    let device = fs::OpenOptions::new().write(true).open(at.target("golden")).unwrap();
    device.write_all_at(&[7; 4096], 1 << 20).unwrap();
    device.sync_all().unwrap();
}

fn is_golden_block(file: &Path) {
    let mut bytes = [0; 4096];
    let open = fs::File::open(file).unwrap();
    open.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!((open.metadata().unwrap().len(), bytes), (16 << 20, [7; 4096]));
}

fn golden_filesystem(at: &At<'_>) {
    at.make(volume("golden", 16 * MIB, mount())).unwrap();
    at.mount("golden", mount()).unwrap();
    fs::write(at.target("golden").join("file"), "content").unwrap();
}

/// Whether `v` has the golden filesystem, which goes on.
fn has_golden_filesystem(at: &At<'_>) {
    fs::write(at.target("golden").join("file"), "content").unwrap();
    at.mount("v", mount()).unwrap();
    assert_eq!(fs::read_to_string(at.target("v").join("file")).unwrap(), "content");
}

/// Whether the file holds an ext4 of 16 MiB.
fn is_filesystem(file: &Path) {
    let mut magic = [0; 2];
    let open = fs::File::open(file).unwrap();
    open.read_exact_at(&mut magic, 1080).unwrap();
    assert_eq!((open.metadata().unwrap().len(), magic), (16 << 20, [0x53, 0xEF]));
}

/// Looks at what is there of a path, if anything is.
fn if_there(path: impl AsRef<Path>, look: fn(&Path)) {
    let path = path.as_ref();
    if path.exists() {
        look(path);
    }
}

/// Snapshots that groups consist of: the driver chooses their names.
pub(crate) fn grouped(pool: &Path) -> Vec<String> {
    let folder = pool.join("snapshots");
    let all = if folder.exists() { names(&folder) } else { Vec::new() };
    all.into_iter().filter(|name| name.starts_with("snapshot-")).collect()
}

/// Whether the group, if it is there, has a snapshot of each of its two volumes.
fn is_group(pool: &Path) {
    if_there(pool.join(".hpp-csi/groups/g.json"), |record| {
        let pool = record.ancestors().nth(3).unwrap();
        assert_eq!(grouped(pool).len(), 2, "{:?}", grouped(pool));
        for snapshot in grouped(pool) {
            let snapshot = pool.join("snapshots").join(snapshot);
            if_there(snapshot.join("image"), is_filesystem);
            if_there(snapshot.join("data"), is_golden_folder);
        }
    });
}

fn block_file(pool: &Path) -> PathBuf {
    pool.join(".hpp-csi/block/v")
}

fn anything(_: &Path) {}

fn is_listed(at: &At<'_>) {
    assert!(at.client.volumes().contains(&"v".to_owned()));
}

fn is_gone(at: &At<'_>) {
    assert!(!at.client.volumes().contains(&"v".to_owned()));
}

/// Whether `v` is an empty folder.
fn is_empty(pool: &Path) {
    if_there(pool.join("v"), |folder| assert_eq!(names(folder), [] as [String; 0]));
}

/// Checks the size that the list reports for `v`.
fn size_is(at: &At<'_>, bytes: &[i64]) {
    let list = at.client.list_volumes(ListVolumesRequest::default()).unwrap();
    let volume = list.entries.into_iter().filter_map(|entry| entry.volume).find(|one| one.volume_id == "v");
    let told = volume.unwrap().capacity_bytes;
    assert!(bytes.contains(&told), "{told}");
}

fn clone_of_golden(bytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest { volume_content_source: from_volume("golden"), ..volume("v", bytes, capability) }
}

/// Calls of the Controller service.
pub(crate) const CONTROLLER: &[Case] = &[
    Case {
        name: "create a folder",
        pool: "",
        before: |_| {},
        call: |at| at.make(volume("v", MIB, mount())),
        whole: is_empty,
        after: |at| size_is(at, &[MIB]),
    },
    Case {
        name: "create a block volume",
        pool: "",
        before: |_| {},
        call: |at| at.make(volume("v", 16 * MIB, block())),
        whole: |pool| {
            if_there(block_file(pool), |file| assert_eq!(fs::metadata(file).unwrap().len(), 16 << 20));
        },
        after: |at| size_is(at, &[16 * MIB]),
    },
    Case {
        name: "create a filesystem",
        pool: LOOP,
        before: |_| {},
        call: |at| at.make(volume("v", 16 * MIB, mount())),
        whole: |pool| if_there(pool.join("v"), |folder| is_filesystem(&folder.join("image"))),
        after: |at| at.mount("v", mount()).unwrap(),
    },
    Case {
        name: "clone a folder",
        pool: "",
        before: golden_folder,
        call: |at| at.make(clone_of_golden(MIB, mount())),
        whole: |pool| if_there(pool.join("v"), is_golden_folder),
        after: is_listed,
    },
    Case {
        name: "clone a block volume in use",
        pool: "",
        before: golden_block,
        call: |at| at.make(clone_of_golden(16 * MIB, block())),
        whole: |pool| if_there(block_file(pool), is_golden_block),
        after: is_listed,
    },
    Case {
        name: "clone a filesystem in use",
        pool: LOOP,
        before: golden_filesystem,
        call: |at| at.make(clone_of_golden(16 * MIB, mount())),
        whole: |pool| if_there(pool.join("v"), |folder| is_filesystem(&folder.join("image"))),
        after: has_golden_filesystem,
    },
    Case {
        name: "take a snapshot of a folder",
        pool: "",
        before: golden_folder,
        call: |at| at.snapshot(),
        whole: |pool| if_there(pool.join("snapshots/s"), |folder| is_golden_folder(&folder.join("data"))),
        after: |at| assert_eq!(at.client.snapshots(), ["s"]),
    },
    Case {
        name: "take a snapshot of a filesystem in use",
        pool: LOOP,
        before: golden_filesystem,
        call: |at| at.snapshot(),
        whole: |pool| if_there(pool.join("snapshots/s"), |folder| is_filesystem(&folder.join("image"))),
        after: |at| {
            let request = volume("v", 16 * MIB, mount());
            at.make(CreateVolumeRequest { volume_content_source: from_snapshot("s"), ..request }).unwrap();
            has_golden_filesystem(at);
        },
    },
    Case {
        name: "restore a snapshot",
        pool: "",
        before: |at| {
            golden_folder(at);
            at.snapshot().unwrap();
        },
        call: |at| {
            let request = volume("v", MIB, mount());
            at.make(CreateVolumeRequest { volume_content_source: from_snapshot("s"), ..request })
        },
        whole: |pool| if_there(pool.join("v"), is_golden_folder),
        after: is_listed,
    },
    Case {
        name: "delete a folder",
        pool: "",
        before: golden_folders,
        call: |at| at.delete("v"),
        whole: |pool| if_there(pool.join("v"), is_golden_folder),
        after: is_gone,
    },
    Case {
        name: "delete a block volume",
        pool: "",
        before: |at| at.make(volume("v", 16 * MIB, block())).unwrap(),
        call: |at| at.delete("v"),
        whole: anything,
        after: is_gone,
    },
    Case {
        name: "delete a snapshot",
        pool: "",
        before: |at| {
            golden_folder(at);
            at.snapshot().unwrap();
        },
        call: |at| at.delete_snapshot(),
        whole: |pool| if_there(pool.join("snapshots/s"), |folder| is_golden_folder(&folder.join("data"))),
        after: |at| assert_eq!(at.client.snapshots(), [] as [String; 0]),
    },
];

/// Calls of the Node service, and growing, which is of both.
pub(crate) const NODE: &[Case] = &[
    Case {
        name: "publish a folder",
        pool: "",
        before: |at| at.make(volume("v", MIB, mount())).unwrap(),
        call: |at| at.mount("v", mount()),
        whole: is_empty,
        after: |at| fs::write(at.target("v").join("file"), "x").unwrap(),
    },
    Case {
        name: "unpublish a folder",
        pool: "",
        before: |at| {
            at.make(volume("v", MIB, mount())).unwrap();
            at.mount("v", mount()).unwrap();
        },
        call: |at| at.unmount("v"),
        whole: is_empty,
        after: |at| assert!(!at.target("v").exists()),
    },
    Case {
        name: "stage and publish a block volume",
        pool: "",
        before: |at| at.make(volume("v", 16 * MIB, block())).unwrap(),
        call: |at| at.mount("v", block()),
        whole: anything,
        after: |at| {
            let device = fs::OpenOptions::new().write(true).open(at.target("v")).unwrap();
            device.write_all_at(&[7; 4096], 1 << 20).unwrap();
        },
    },
    Case {
        name: "unpublish and unstage a block volume",
        pool: "",
        before: |at| {
            at.make(volume("v", 16 * MIB, block())).unwrap();
            at.mount("v", block()).unwrap();
        },
        call: |at| at.unmount("v"),
        whole: anything,
        after: |at| assert!(!at.target("v").exists()),
    },
    Case {
        name: "stage and publish a filesystem",
        pool: LOOP,
        before: |at| at.make(volume("v", 16 * MIB, mount())).unwrap(),
        call: |at| at.mount("v", mount()),
        whole: |pool| is_filesystem(&pool.join("v/image")),
        after: |at| fs::write(at.target("v").join("file"), "x").unwrap(),
    },
    Case {
        name: "unpublish and unstage a filesystem",
        pool: LOOP,
        before: |at| {
            at.make(volume("v", 16 * MIB, mount())).unwrap();
            at.mount("v", mount()).unwrap();
        },
        call: |at| at.unmount("v"),
        whole: |pool| is_filesystem(&pool.join("v/image")),
        after: |at| assert!(!at.target("v").exists()),
    },
    Case {
        name: "publish a pod's own volume",
        pool: LOOP,
        before: |_| {},
        call: |at| at.inline(),
        whole: |pool| if_there(pool.join(INLINE), |folder| is_filesystem(&folder.join("image"))),
        after: |at| fs::write(at.target(INLINE).join("file"), "x").unwrap(),
    },
    Case {
        name: "unpublish a pod's own volume",
        pool: LOOP,
        before: |at| at.inline().unwrap(),
        call: |at| at.leave(INLINE),
        whole: |pool| if_there(pool.join(INLINE), |folder| is_filesystem(&folder.join("image"))),
        after: |at| assert_eq!(at.client.volumes(), [] as [String; 0]),
    },
    Case {
        name: "expand a folder",
        pool: "",
        before: |at| at.make(volume("v", MIB, mount())).unwrap(),
        call: |at| at.expand(32 * MIB),
        whole: is_empty,
        after: |at| size_is(at, &[32 * MIB]),
    },
    Case {
        name: "expand a block volume in use",
        pool: "",
        before: |at| {
            at.make(volume("v", 16 * MIB, block())).unwrap();
            at.mount("v", block()).unwrap();
        },
        call: |at| at.expand(32 * MIB),
        whole: |pool| {
            let length = fs::metadata(block_file(pool)).unwrap().len();
            assert!([16 << 20, 32 << 20].contains(&length), "{length}");
        },
        after: |at| {
            size_is(at, &[32 * MIB]);
            let device = fs::OpenOptions::new().write(true).open(at.target("v")).unwrap();
            device.write_all_at(&[7; 4096], (32 << 20) - 4096).unwrap();
        },
    },
    Case {
        name: "expand a filesystem in use",
        pool: LOOP,
        before: |at| {
            // Large enough for XFS: an ext4 grows in a guest only.
            at.make(volume("v", 320 * MIB, mount())).unwrap();
            at.mount("v", mount()).unwrap();
            fs::write(at.target("v").join("file"), "content").unwrap();
        },
        call: |at| at.expand(480 * MIB),
        whole: |pool| {
            let length = fs::metadata(pool.join("v/image")).unwrap().len();
            assert!([320 << 20, 480 << 20].contains(&length), "{length}");
        },
        after: |at| {
            size_is(at, &[480 * MIB]);
            let numbers = rustix::fs::statvfs(at.target("v")).unwrap();
            assert!(numbers.f_blocks * numbers.f_frsize > 350 << 20);
            assert_eq!(fs::read_to_string(at.target("v").join("file")).unwrap(), "content");
        },
    },
];

/// Calls of the GroupController service. Each is of `golden` and `v`.
pub(crate) const GROUPS: &[Case] = &[
    Case {
        name: "take a group snapshot of filesystems in use",
        pool: LOOP,
        before: |at| {
            golden_filesystem(at);
            at.make(clone_of_golden(16 * MIB, mount())).unwrap();
            at.mount("v", mount()).unwrap();
        },
        call: |at| at.group(),
        whole: is_group,
        after: |at| {
            assert_eq!(at.client.snapshots().len(), 2);
            for id in ["golden", "v"] {
                fs::write(at.target(id).join("file"), "more").unwrap();
            }
        },
    },
    Case {
        name: "take a group snapshot of folders",
        pool: "",
        before: golden_folders,
        call: |at| at.group(),
        whole: is_group,
        after: |at| assert_eq!(at.client.snapshots().len(), 2),
    },
    Case {
        name: "delete a group snapshot",
        pool: "",
        before: |at| {
            golden_folders(at);
            at.group().unwrap();
        },
        call: |at| at.delete_group(),
        whole: is_group,
        after: |at| assert_eq!(at.client.snapshots(), [] as [String; 0]),
    },
];
