//! Snapshots' metadata through the built driver: what is allocated and what changed, judged by the bytes themselves; and
//! volumes that are modified.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use csi::snapshot_metadata_client::SnapshotMetadataClient;
use csi::*;
use tonic::{Code, Status};

use crate::support::place::Place;
use crate::support::{
    self, Client, GIB, KIB, MIB, block, from_volume, mount, one_pool, parameters, refused, volume,
};

/// All ranges of a stream, its messages' lengths, and the capacity they report.
type Metadata = (Vec<(i64, i64)>, Vec<usize>, i64);

macro_rules! streamed {
    ($client:expr, $call:ident, $request:expr) => {
        $client.runtime().block_on(async {
            let mut stream =
                SnapshotMetadataClient::new($client.channel()).$call($request).await?.into_inner();
            let (mut ranges, mut lengths, mut capacity) = (Vec::new(), Vec::new(), 0);
            while let Some(message) = stream.message().await? {
                assert_eq!(message.block_metadata_type, i32::from(BlockMetadataType::VariableLength));
                lengths.push(message.block_metadata.len());
                capacity = message.volume_capacity_bytes;
                ranges.extend(message.block_metadata.iter().map(|one| (one.byte_offset, one.size_bytes)));
            }
            Ok::<Metadata, Status>((ranges, lengths, capacity))
        })
    };
}

fn allocated(client: &Client, id: &str, starting_offset: i64, max_results: i32) -> Result<Metadata, Status> {
    let request = GetMetadataAllocatedRequest {
        snapshot_id: id.into(),
        starting_offset,
        max_results,
        ..Default::default()
    };
    streamed!(client, get_metadata_allocated, request)
}

fn changed(
    client: &Client,
    of: [&str; 2],
    starting_offset: i64,
    max_results: i32,
) -> Result<Metadata, Status> {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: of[0].into(),
        target_snapshot_id: of[1].into(),
        starting_offset,
        max_results,
        ..Default::default()
    };
    streamed!(client, get_metadata_delta, request)
}

/// The blocks of 4 KiB in which two files differ.
fn differing(one: &Path, other: &Path) -> Vec<i64> {
    let [one, other] = [one, other].map(|path| fs::read(path).unwrap());
    let blocks = one.chunks(4096).zip(other.chunks(4096)).enumerate();
    blocks
        .filter(|(_, (one, other))| one != other)
        .map(|(at, _)| i64::try_from(at).unwrap() * 4 * KIB)
        .collect()
}

fn covers(ranges: &[(i64, i64)], block: i64) -> bool {
    ranges.iter().any(|(offset, size)| (*offset..offset + size).contains(&block))
}

#[test]
fn all_changed_blocks_are_reported() {
    let place = Place::new("xfs", 2 * GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("disk", 64 * MIB, block()));
    let disk = fs::OpenOptions::new().write(true).open(place.pool().join(".hpp-csi/block/disk")).unwrap();
    let write = |at: i64, length: usize, byte: u8| {
        disk.write_all_at(&vec![byte; length], at.try_into().unwrap()).unwrap();
        disk.sync_all().unwrap();
    };
    write(0, 4 << 20, 1);
    write(20 * MIB, 2 << 20, 2);
    client.snapshot("empty-first", "disk");
    // Rewrites some blocks, far more than one question to the kernel answers; writes some for the first time; makes a hole.
    let mut state = 7_u64;
    for _ in 0..700 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let block = i64::try_from((state >> 33) % (16 * 1024)).unwrap();
        disk.write_all_at(&[9; 4096], (block * 4 * KIB).try_into().unwrap()).unwrap();
    }
    disk.sync_all().unwrap();
    rustix::fs::fallocate(
        &disk,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        64 << 10,
    )
    .unwrap();
    client.snapshot("then", "disk");

    let image = |id: &str| place.pool().join("snapshots").join(id).join("image");
    let (all, _, capacity) = allocated(&client, "empty-first", 0, 0).unwrap();
    assert_eq!((all, capacity), (vec![(0, 4 * MIB), (20 * MIB, 2 * MIB)], 64 * MIB));

    let (all, lengths, _) = allocated(&client, "then", 0, 100).unwrap();
    assert!(lengths.len() > 3 && lengths.iter().all(|length| *length <= 100), "{lengths:?}");
    let bytes = fs::read(image("then")).unwrap();
    for (at, _) in bytes.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        assert!(covers(&all, i64::try_from(at).unwrap() * 4 * KIB), "block {at} holds data");
    }

    let of = ["empty-first", "then"];
    let (delta, _, capacity) = changed(&client, of, 0, 0).unwrap();
    assert_eq!(capacity, 64 * MIB);
    assert!(
        delta.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0),
        "in order, none touching the next"
    );
    let blocks = differing(&image("empty-first"), &image("then"));
    assert!(blocks.len() > 500);
    for block in &blocks {
        assert!(covers(&delta, *block), "the block at {block} differs");
    }
    let told: i64 = delta.iter().map(|(_, size)| size / (4 * KIB)).sum();
    assert!(
        told <= i64::try_from(blocks.len()).unwrap() + 16,
        "{told} blocks are told, {} differ",
        blocks.len()
    );
    assert_eq!(changed(&client, ["then", "then"], 0, 0).unwrap().0, []);

    // Interrupted after any range, it goes on just behind it.
    for index in [0, 1, delta.len() / 2, delta.len() - 1] {
        let next = delta[index].0 + delta[index].1;
        assert_eq!(changed(&client, of, next, 7).unwrap().0, delta[index + 1..]);
    }
    let middle = delta[0].0 + 512;
    assert_eq!(changed(&client, of, middle, 0).unwrap().0[0], (middle, delta[0].1 - 512));
    assert_eq!(allocated(&client, "empty-first", 64 * MIB, 0).unwrap(), (vec![], vec![0], 64 * MIB));
}

#[test]
fn sources_without_metadata_are_refused() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("disk", MIB, block()));
    client.create(volume("other", MIB, block()));
    client.create(volume("files", MIB, mount()));
    for (snapshot, of) in [("d", "disk"), ("o", "other"), ("f", "files")] {
        client.snapshot(snapshot, of);
    }
    let code = |result: Result<Metadata, Status>| refused(result).0;
    assert_eq!(code(allocated(&client, "", 0, 0)), Code::InvalidArgument);
    assert_eq!(code(allocated(&client, "d", 0, -1)), Code::InvalidArgument);
    assert_eq!(code(allocated(&client, "gone", 0, 0)), Code::NotFound);
    assert_eq!(code(allocated(&client, "f", 0, 0)), Code::FailedPrecondition);
    assert_eq!(code(allocated(&client, "d", -1, 0)), Code::OutOfRange);
    assert_eq!(code(allocated(&client, "d", MIB + 1, 0)), Code::OutOfRange);
    assert_eq!(code(changed(&client, ["d", "o"], 0, 0)), Code::InvalidArgument);
    assert_eq!(code(changed(&client, ["d", ""], 0, 0)), Code::InvalidArgument);
    assert_eq!(code(changed(&client, ["gone", "d"], 0, 0)), Code::NotFound);
    assert_eq!(code(changed(&client, ["d", "d"], i64::MAX, 0)), Code::OutOfRange);
}

#[test]
fn without_reflinks_allocation_is_reported_and_changes_are_not() {
    let place = Place::new("ext4", GIB);
    let (_driver, client) = one_pool(&place, r#","copy":true"#);
    client.create(volume("disk", 8 * MIB, block()));
    let disk = fs::OpenOptions::new().write(true).open(place.pool().join(".hpp-csi/block/disk")).unwrap();
    disk.write_all_at(&[1; 64 << 10], 1 << 20).unwrap();
    for name in ["a", "b"] {
        let request = CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: "disk".into(),
            parameters: parameters(&[("copy", "true")]),
            ..Default::default()
        };
        client.create_snapshot(request).unwrap();
    }
    assert_eq!(allocated(&client, "a", 0, 0).unwrap().0, [(MIB, 64 * KIB)]);
    assert_eq!(refused(changed(&client, ["a", "b"], 0, 0)).0, Code::FailedPrecondition);
}

#[test]
fn a_thick_volume_owns_all_its_blocks_and_keeps_owning_them_when_it_grows() {
    let place = Place::new("xfs", 2 * GIB);
    let (_driver, client) = one_pool(&place, "");
    let modify = |id: &str, allocation: &str| {
        client.controller_modify_volume(ControllerModifyVolumeRequest {
            volume_id: id.into(),
            mutable_parameters: parameters(&[("allocation", allocation)]),
            ..Default::default()
        })
    };
    client.create(volume("golden", 100 * MIB, block()));
    let file = |name: &str| place.pool().join(".hpp-csi/block").join(name);
    let disk = fs::OpenOptions::new().write(true).open(file("golden")).unwrap();
    disk.write_all_at(&[5; 1 << 20], 0).unwrap();
    disk.sync_all().unwrap();
    client.create(CreateVolumeRequest {
        volume_content_source: from_volume("golden"),
        ..volume("clone", 100 * MIB, block())
    });
    let map = |name: &str| support::place::run("filefrag", &["-v", file(name).to_str().unwrap()]);
    let holds = |name: &str| i64::try_from(fs::metadata(file(name)).unwrap().blocks()).unwrap() * 512;
    assert!(map("clone").contains("shared") && holds("clone") < 2 * MIB);
    for _ in 0..2 {
        modify("clone", "thick").unwrap();
        assert!(!map("clone").contains("shared") && holds("clone") >= 100 * MIB, "{}", map("clone"));
    }
    assert_eq!(fs::read(file("clone")).unwrap()[..1 << 20], vec![5; 1 << 20]);
    client
        .controller_expand_volume(ControllerExpandVolumeRequest {
            volume_id: "clone".into(),
            capacity_range: Some(CapacityRange { required_bytes: 150 * MIB, limit_bytes: 0 }),
            ..Default::default()
        })
        .unwrap();
    assert!(holds("clone") >= 150 * MIB);
    modify("clone", "thin").unwrap();
    // From the start; an invalid request leaves no volume.
    let thick = |name: &str, capability| CreateVolumeRequest {
        mutable_parameters: parameters(&[("allocation", "thick")]),
        ..volume(name, 50 * MIB, capability)
    };
    client.create(thick("born", block()));
    assert!(holds("born") >= 50 * MIB);
    assert_eq!(refused(client.create_volume(thick("folder", mount()))).0, Code::InvalidArgument);
    client.create(volume("folder", 50 * MIB, mount()));
    assert_eq!(refused(modify("folder", "thick")).0, Code::InvalidArgument);
    modify("folder", "thin").unwrap();
    assert_eq!(refused(modify("gone", "thin")).0, Code::NotFound);
}
