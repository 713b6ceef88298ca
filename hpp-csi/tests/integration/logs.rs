//! Log lines of calls: each names the call and what it is about.

use std::path::Path;

use csi::snapshot_metadata_client::SnapshotMetadataClient;
use csi::*;
use tonic::{Code, Status};

use crate::support::place::Place;
use crate::support::{Client, GIB, MIB, block, mount, one_pool, parameters, publish, refused, stage, volume};

/// The name of a call, what its log line has besides, and the call.
type Case<'a> = (&'a str, &'a str, &'a dyn Fn() -> Result<(), Status>);

fn range(bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 })
}

fn delete_volume(client: &Client, id: &str) -> Result<(), Status> {
    client.delete_volume(DeleteVolumeRequest { volume_id: id.into(), ..Default::default() }).map(drop)
}

fn delete_snapshot(client: &Client, id: &str) -> Result<(), Status> {
    client.delete_snapshot(DeleteSnapshotRequest { snapshot_id: id.into(), ..Default::default() }).map(drop)
}

fn expand(client: &Client, id: &str, bytes: i64) -> Result<(), Status> {
    let request = ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: range(bytes),
        ..Default::default()
    };
    client.controller_expand_volume(request).map(drop)
}

fn snapshot(client: &Client, name: &str, source: &str) -> Result<(), Status> {
    let request =
        CreateSnapshotRequest { name: name.into(), source_volume_id: source.into(), ..Default::default() };
    client.create_snapshot(request).map(drop)
}

fn group(client: &Client, name: &str, volumes: &[&str]) -> Result<Vec<String>, Status> {
    let request = CreateVolumeGroupSnapshotRequest {
        name: name.into(),
        source_volume_ids: volumes.iter().map(|&volume| volume.to_owned()).collect(),
        ..Default::default()
    };
    let group = client.create_volume_group_snapshot(request)?.group_snapshot.unwrap();
    Ok(group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect())
}

fn delete_group(client: &Client, name: &str, snapshots: &[String]) -> Result<(), Status> {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: name.into(),
        snapshot_ids: snapshots.to_vec(),
        ..Default::default()
    };
    client.delete_volume_group_snapshot(request).map(drop)
}

fn modify(client: &Client, id: &str, allocation: &str) -> Result<(), Status> {
    let request = ControllerModifyVolumeRequest {
        volume_id: id.into(),
        mutable_parameters: parameters(&[("allocation", allocation)]),
        ..Default::default()
    };
    client.controller_modify_volume(request).map(drop)
}

/// Whether a line has the call, all of `about` and the text.
fn has(log: &str, call: &str, about: &str, text: &str) -> bool {
    let call = format!("call={call:?}");
    log.lines().any(|line| line.contains(&call) && line.contains(about) && line.contains(text))
}

#[test]
fn lines_of_work_name_the_call_and_the_volume() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    let target = place.beside("pods").join("folder");
    let members = std::cell::RefCell::new(Vec::new());
    let cases: &[Case<'_>] = &[
        ("CreateVolume", r#"id="folder""#, &|| {
            client.create_volume(volume("folder", 64 * MIB, mount())).map(drop)
        }),
        ("CreateVolume", r#"id="disk""#, &|| {
            client.create_volume(volume("disk", 64 * MIB, block())).map(drop)
        }),
        ("ControllerExpandVolume", r#"id="disk""#, &|| expand(&client, "disk", 80 * MIB)),
        ("ControllerModifyVolume", r#"id="disk""#, &|| modify(&client, "disk", "thick")),
        ("NodePublishVolume", r#"id="folder""#, &|| {
            client.node_publish_volume(publish("folder", Path::new(""), &target, mount())).map(drop)
        }),
        ("CreateSnapshot", r#"id="snap" source="disk""#, &|| snapshot(&client, "snap", "disk")),
        ("CreateVolumeGroupSnapshot", r#"id="group" source="disk""#, &|| {
            *members.borrow_mut() = group(&client, "group", &["disk"])?;
            Ok(())
        }),
        ("DeleteVolumeGroupSnapshot", r#"id="group""#, &|| delete_group(&client, "group", &members.borrow())),
        ("DeleteSnapshot", r#"id="snap""#, &|| delete_snapshot(&client, "snap")),
        ("DeleteVolume", r#"id="disk""#, &|| delete_volume(&client, "disk")),
    ];
    for (call, about, run) in cases {
        run().unwrap();
        assert!(has(&driver.log(), call, about, "INFO"), "{call} {about}:\n{}", driver.log());
    }
    client.unpublish("folder", &target);
}

#[test]
fn lines_of_failures_name_the_call_and_the_volume() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("folder", 64 * MIB, mount()));
    client.create(volume("disk", 64 * MIB, block()));
    let relative = Path::new("relative/path");
    let metadata = || SnapshotMetadataClient::new(client.channel());
    let absent = r#"id="absent""#;
    let cases: &[Case<'_>] = &[
        ("CreateVolume", r#"id="folder""#, &|| {
            client.create_volume(volume("folder", 90 * MIB, mount())).map(drop)
        }),
        ("ValidateVolumeCapabilities", absent, &|| {
            let request = ValidateVolumeCapabilitiesRequest {
                volume_id: "absent".into(),
                volume_capabilities: vec![mount()],
                ..Default::default()
            };
            client.validate_volume_capabilities(request).map(drop)
        }),
        ("ControllerGetVolume", absent, &|| {
            client.controller_get_volume(ControllerGetVolumeRequest { volume_id: "absent".into() }).map(drop)
        }),
        ("ControllerExpandVolume", r#"id="disk""#, &|| expand(&client, "disk", 90 * GIB)),
        ("ControllerModifyVolume", r#"id="folder""#, &|| modify(&client, "folder", "thick")),
        ("ListVolumes", "", &|| {
            client.list_volumes(ListVolumesRequest { starting_token: "?".into(), max_entries: 1 }).map(drop)
        }),
        ("CreateSnapshot", r#"id="snap" source="absent""#, &|| snapshot(&client, "snap", "absent")),
        ("GetSnapshot", absent, &|| {
            let request = GetSnapshotRequest { snapshot_id: "absent".into(), ..Default::default() };
            client.get_snapshot(request).map(drop)
        }),
        ("ListSnapshots", "", &|| {
            let request = ListSnapshotsRequest { starting_token: "?".into(), ..Default::default() };
            client.list_snapshots(request).map(drop)
        }),
        ("CreateVolumeGroupSnapshot", r#"id="group" source="absent,disk""#, &|| {
            group(&client, "group", &["absent", "disk"]).map(drop)
        }),
        ("GetVolumeGroupSnapshot", absent, &|| {
            let request =
                GetVolumeGroupSnapshotRequest { group_snapshot_id: "absent".into(), ..Default::default() };
            client.get_volume_group_snapshot(request).map(drop)
        }),
        ("GetMetadataAllocated", absent, &|| {
            let request = GetMetadataAllocatedRequest { snapshot_id: "absent".into(), ..Default::default() };
            client.runtime().block_on(metadata().get_metadata_allocated(request)).map(drop)
        }),
        ("GetMetadataDelta", absent, &|| {
            let request = GetMetadataDeltaRequest {
                base_snapshot_id: "base".into(),
                target_snapshot_id: "absent".into(),
                ..Default::default()
            };
            client.runtime().block_on(metadata().get_metadata_delta(request)).map(drop)
        }),
        ("NodeStageVolume", absent, &|| {
            client.node_stage_volume(stage("absent", relative, mount())).map(drop)
        }),
        ("NodeUnstageVolume", absent, &|| {
            let staging_target_path = "relative/path".into();
            let request = NodeUnstageVolumeRequest { volume_id: "absent".into(), staging_target_path };
            client.node_unstage_volume(request).map(drop)
        }),
        ("NodePublishVolume", absent, &|| {
            client.node_publish_volume(publish("absent", relative, relative, mount())).map(drop)
        }),
        ("NodeUnpublishVolume", absent, &|| {
            let target_path = "relative/path".into();
            let request = NodeUnpublishVolumeRequest { volume_id: "absent".into(), target_path };
            client.node_unpublish_volume(request).map(drop)
        }),
        ("NodeGetVolumeStats", absent, &|| {
            let request = NodeGetVolumeStatsRequest {
                volume_id: "absent".into(),
                volume_path: "/nowhere".into(),
                ..Default::default()
            };
            client.node_get_volume_stats(request).map(drop)
        }),
        ("NodeExpandVolume", absent, &|| {
            let request = NodeExpandVolumeRequest {
                volume_id: "absent".into(),
                volume_path: "relative/path".into(),
                ..Default::default()
            };
            client.node_expand_volume(request).map(drop)
        }),
    ];
    for (call, about, run) in cases {
        let (code, message) = refused(run());
        assert_ne!(code, Code::Internal, "{call}: {message}");
        assert!(has(&driver.log(), call, about, "the call is refused"), "{call} {about}:\n{}", driver.log());
    }
    // The filesystem fails beneath the calls.
    place.cut_power();
    let cases: &[Case<'_>] = &[
        ("DeleteVolume", r#"id="folder""#, &|| delete_volume(&client, "folder")),
        ("DeleteSnapshot", r#"id="snap""#, &|| delete_snapshot(&client, "snap")),
        ("DeleteVolumeGroupSnapshot", r#"id="group""#, &|| delete_group(&client, "group", &[])),
    ];
    for (call, about, run) in cases {
        run().unwrap_err();
        assert!(has(&driver.log(), call, about, "the call failed"), "{call} {about}:\n{}", driver.log());
    }
}
