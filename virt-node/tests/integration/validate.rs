//! `virt-node validate`: its findings about documents, and its output for programs and users.

use std::fs;
use std::process::Output;

use serde_json::Value;
use virt::fields::Place;
use virt::finding::Verdict;
use virt::validate::{Documents, Report};

use crate::support::launcher::program;

/// A guest as its documentation would show it, with everything it names.
const GUEST: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web, namespace: shop}
spec:
  runStrategy: Always
  dataVolumeTemplates:
  - metadata: {name: web-root}
    spec:
      source: {http: {url: 'https://example.com/debian.qcow2'}}
      storage: {resources: {requests: {storage: 10Gi}}}
  template:
    metadata: {labels: {app: web}}
    spec:
      evictionStrategy: LiveMigrate
      domain:
        cpu: {cores: 2}
        memory: {guest: 2Gi}
        devices:
          disks:
          - {name: root, disk: {bus: virtio}}
          - {name: init, disk: {bus: virtio}}
          interfaces:
          - {name: default, masquerade: {}}
          - {name: storage, bridge: {}}
      networks:
      - {name: default, pod: {}}
      - {name: storage, multus: {networkName: storage}}
      volumes:
      - {name: root, dataVolume: {name: web-root}}
      - {name: init, cloudInitNoCloud: {secretRef: {name: web-init}}}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: storage, namespace: shop}
spec: {config: '{\"cniVersion\": \"1.0.0\", \"type\": \"bridge\", \"bridge\": \"br1\"}'}
---
apiVersion: v1
kind: Secret
metadata: {name: web-init, namespace: shop}
stringData: {userdata: '#cloud-config'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: more, namespace: shop}
data: {a: b}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {name: empty, namespace: shop}
spec: {source: {blank: {}}, pvc: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
";

fn report(text: &str) -> Report {
    Documents::parse([("vm.yaml", text.as_bytes())]).validate(Place::Machine).report
}

/// Findings of all objects as `verdict path`.
fn findings(report: &Report) -> Vec<String> {
    let findings = report.objects.iter().flat_map(|object| &object.findings);
    findings.map(|finding| format!("{} {}", finding.verdict.word(), finding.path)).collect()
}

/// The guest with one text replaced.
fn changed(from: &str, to: &str) -> String {
    assert!(GUEST.contains(from), "{from}");
    GUEST.replacen(from, to, 1)
}

#[test]
fn a_guest_and_all_it_names_are_accepted() {
    let report = report(GUEST);
    assert!(report.is_valid(), "{}", report.text(false));
    assert_eq!(findings(&report), ["ignored spec.template.spec.evictionStrategy", "ignored kind"]);
    let kinds: Vec<&str> = report.objects.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(kinds.len(), 7);
    let accepted = &report.objects[0].accepted;
    assert!(
        accepted.contains(&"spec.template.spec.domain.devices.disks[1].disk.bus".to_owned()),
        "{accepted:#?}"
    );
    assert!(!accepted.iter().any(|path| path.contains("evictionStrategy")));
}

#[test]
fn fields_are_reported_by_path_and_lot() {
    for (from, to, wanted) in [
        ("cpu: {cores: 2}", "cpu: {cores: 2, numa: {}}", "unsupported spec.template.spec.domain.cpu.numa"),
        ("cpu: {cores: 2}", "cpu: {corse: 2}", "unknown spec.template.spec.domain.cpu.corse"),
        ("cpu: {cores: 2}", "cpu: {cores: two}", "error spec.template.spec.domain.cpu.cores"),
        ("cpu: {cores: 2}", "cpu: [2]", "error spec.template.spec.domain.cpu"),
        (
            "memory: {guest: 2Gi}",
            "launchSecurity: {sev: {}}",
            "error spec.template.spec.domain.launchSecurity",
        ),
        ("memory: {guest: 2Gi}", "memory: {}", "error spec.template.spec.domain.memory.guest"),
        ("runStrategy: Always", "runStrategy: Sometimes", "error spec.runStrategy"),
        ("runStrategy: Always", "running: true\n  runStrategy: Always", "error spec.running"),
        ("  runStrategy: Always\n", "", "error spec.runStrategy"),
        (
            "runStrategy: Always",
            "runStrategy: Always\n  instancetype: {name: u1.small}",
            "error spec.instancetype",
        ),
        ("{name: web, namespace: shop}", "{name: ../web, namespace: shop}", "error metadata.name"),
        ("{name: web, namespace: shop}", "{namespace: shop}", "error metadata.name"),
        ("kubevirt.io/v1\n", "kubevirt.io/v2\n", "error apiVersion"),
        ("name: web-root}", "name: A}", "error spec.dataVolumeTemplates[0].metadata.name"),
        (
            "https://example.com",
            "ftp://example.com",
            "error spec.dataVolumeTemplates[0].spec.source.http.url",
        ),
        (
            "storage: 10Gi",
            "storage: 10Gib",
            "error spec.dataVolumeTemplates[0].spec.storage.resources.requests.storage",
        ),
        ("blank: {}", "blank: {}, upload: {}", "error spec.source"),
        ("blank: {}", "blank: {}, gcs: {url: gs://a/b}", "error spec.source"),
        ("\"type\": \"bridge\", ", "", "error spec.config"),
        ("\"type\": \"bridge\", ", "\"type\": \"../bridge\", ", "error spec.config"),
        ("{config: '{", "{config: '", "error spec.config"),
        ("stringData: {userdata: '#cloud-config'}", "data: {userdata: '%'}", "error data.userdata"),
        (
            "[ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n---",
            "[Once]}\n---",
            "error spec.accessModes[0]",
        ),
        ("{name: more,", "{name: web-init,", "none"),
        (
            "name: data, namespace: shop}\nspec: {",
            "name: data, namespace: shop}\nspec: {volumeName: a, ",
            "ignored spec.volumeName",
        ),
    ] {
        let report = report(&changed(from, to));
        let found = findings(&report);
        if wanted == "none" {
            assert!(report.is_valid(), "another kind may have the same name: {found:?}");
        } else {
            assert!(found.iter().any(|one| one == wanted), "{to}: {wanted} is not among {found:#?}");
            let bad = wanted.starts_with("error") || wanted.starts_with("unknown");
            assert_eq!(report.is_valid(), !bad, "{to}: {found:#?}");
        }
    }
}

#[test]
fn a_duplicate_object_is_reported() {
    let report = report(&format!(
        "{GUEST}\n---\n{}",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: web-init, namespace: shop}"
    ));
    assert_eq!(findings(&report).last().unwrap(), "error metadata.name");
}

/// Seconds of a processor that this thread has used.
fn worked() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec
}

#[test]
fn hostile_documents_are_answered_soon() {
    let mut many = String::from(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec:\n  domain:\n    memory: {guest: 1Gi}\n    devices:\n      disks:\n",
    );
    // As many as there may be nodes for.
    (0..100_000).for_each(|number| many.push_str(&format!("      - {{name: d{number}}}\n")));
    let volume = |number: u32| format!("  - {{name: d{number}}}\n");
    let mut volumes = String::from(many.split("    devices").next().unwrap());
    volumes.push_str("    devices: {disks: [{name: d0}]}\n  volumes:\n");
    (0..10_000).for_each(|number| {
        volumes.push_str(&format!("  - {{name: d{number}, emptyDisk: {{capacity: 1Gi}}}}\n"))
    });
    let mut more_volumes = volumes.clone();
    (10_000..90_000).for_each(|number| more_volumes.push_str(&volume(number)));
    let ports = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: a}}\nspec:\n  domain:\n    memory: {{guest: 1Gi}}\n    devices: {{interfaces: [{{name: a, masquerade: {{}}, ports: [{}]}}]}}\n  networks: [{{name: a, pod: {{}}}}]",
        (0..65_535).map(|n| format!("{{name: n{n}, port: 0}}, ")).collect::<String>()
    );
    let templates = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: a}}\nspec: {{runStrategy: Always, dataVolumeTemplates: [{}]}}",
        (0..50_000).map(|n| format!("{{metadata: {{name: n{n}}}}}, ")).collect::<String>()
    );
    let long = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: a}}\nspec:\n  domain: {{memory: {{guest: 1Gi}}, devices: {{disks: [{{name: a}}]}}}}\n  volumes: [{{name: a, cloudInitNoCloud: {{userData: {}}}}}]",
        "x".repeat(10 << 20)
    );
    let path = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec:\n  domain: {memory: {guest: 1Gi}, devices: {disks: [{name: a}]}}\n  volumes: [{name: a, hostDisk: {path: /srv/../etc/shadow, type: Disk}}]";
    let wrong = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nspec: {{{}}}",
        (0..100_000).map(|n| format!("f{n}: 1, ")).collect::<String>()
    );
    for (name, text, wanted) in [
        ("many", many.as_str(), "error spec.domain.devices.disks"),
        ("volumes", &volumes, "error spec.volumes"),
        ("more volumes", &more_volumes, "error spec.volumes"),
        ("ports", &ports, "error spec.domain.devices.interfaces[0].ports[0].port"),
        ("templates", &templates, "error spec.dataVolumeTemplates"),
        ("long", &long, "error spec.volumes[0].cloudInitNoCloud"),
        ("path", path, "error spec.volumes[0].hostDisk.path"),
        ("wrong", &wrong, "unknown spec.f0"),
    ] {
        let begun = worked();
        let report = report(text);
        let found = findings(&report);
        assert!(found.iter().any(|one| one == wanted), "{name}: {:?}", found.first());
        assert!(report.text(true).len() < 32 << 20);
        let took = worked() - begun;
        assert!(took < 10, "{name} took {took} s of a processor");
    }
}

#[test]
fn a_name_that_is_too_long_to_start_is_refused() {
    let told_of = |namespace: &str, length: usize| {
        let text = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {}{namespace}}}\nspec: {{domain: {{memory: {{guest: 1Gi}}, devices: {{}}}}}}",
            "a".repeat(length)
        );
        findings(&report(&text))
    };
    let refused = |found: Vec<String>| found.iter().any(|one| one == "error metadata.name");
    assert!(!refused(told_of("", 237)), "{:?}", told_of("", 237));
    assert!(refused(told_of("", 238)));
    assert!(refused(told_of(", namespace: another-one", 237)));
}

#[test]
fn a_machines_name_that_is_too_long_to_start_is_refused() {
    let found = |length: usize| {
        let text = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {}}}\nspec: {{runStrategy: Halted, template: {{spec: {{domain: {{memory: {{guest: 1Gi}}, devices: {{}}}}}}}}}}",
            "a".repeat(length)
        );
        findings(&report(&text))
    };
    assert!(!found(237).iter().any(|one| one.starts_with("error")), "{:?}", found(237));
    assert!(found(238).iter().any(|one| one == "error metadata.name"), "{:?}", found(238));
}

#[test]
fn annotations_that_change_a_vm_upstream_are_reported() {
    for name in [
        "hooks.kubevirt.io/hookSidecars",
        "kubevirt.io/disablePCIHole64",
        "kubevirt.io/free-page-reporting-disabled",
        "kubevirt.io/ignitiondata",
        "kubevirt.io/keep-launcher-alive-after-failure",
        "kubevirt.io/libvirt-log-filters",
        "kubevirt.io/placePCIDevicesOnRootComplex",
    ] {
        let machine = changed("{labels: {app: web}}", &format!("{{annotations: {{{name}: 'true'}}}}"));
        let found = findings(&report(&machine));
        let wanted = format!("unsupported spec.template.metadata.annotations.{name}");
        assert!(found.contains(&wanted), "{name}: {found:?}");
        let instance = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: a, annotations: {{{name}: 'true'}}}}\nspec: {{domain: {{memory: {{guest: 1Gi}}, devices: {{}}}}}}"
        );
        let found = findings(&report(&instance));
        assert!(found.contains(&format!("unsupported metadata.annotations.{name}")), "{name}: {found:?}");
    }
    let other = changed("{labels: {app: web}}", "{annotations: {example.com/note: 'true'}}");
    assert!(!findings(&report(&other)).iter().any(|one| one.contains("annotations")));
}

/// The program with these arguments and this standard input.
fn run(arguments: &[&str], input: &str) -> Output {
    program::run(env!("CARGO_BIN_EXE_virt-node"), arguments, input.as_bytes())
}

#[test]
fn findings_are_printed_as_text_and_json_with_an_exit_code() {
    let output = run(&["validate", "-"], GUEST);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("-, document 1: VirtualMachine shop/web\n"), "{text}");
    assert!(text.contains("  ignored     spec.template.spec.evictionStrategy: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("objects: 7; fields: "), "{text}");
    let output = run(&["validate", "--all", "--output", "json", "-"], &changed("cores: 2", "cores: 0"));
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["valid"], false);
    let finding = &json["objects"][0]["findings"][1];
    assert_eq!(finding["path"], "spec.template.spec.domain.cpu.cores");
    assert_eq!(finding["verdict"], Verdict::Error.word());
    assert!(json["objects"][1]["accepted"].as_array().is_some_and(|list| !list.is_empty()));
}

#[test]
fn unreadable_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.yaml");
    fs::write(&broken, "a: [").unwrap();
    let output = run(&["validate", broken.to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("broken.yaml: invalid YAML"));
    let output = run(&["validate", "/nonexistent.yaml"], "");
    assert_eq!(output.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&output.stderr).starts_with("virt-node: cannot read /nonexistent.yaml: ")
    );
    assert_eq!(run(&["validate"], "").status.code(), Some(2));
    assert_eq!(run(&["fly"], "").status.code(), Some(2));
    let help = run(&["--help"], "");
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Examples:") && help.contains("validate") && help.contains("check"));
}

/// The verdict on a document in one line: `accepted`, with the field and the verdict of each finding, or `refused` with
/// the fields of its errors.
fn verdict(document: &str) -> String {
    let report = Documents::parse([("corpus", document.as_bytes())]).validate(Place::Machine).report;
    let Some(object) = report.objects.first() else { return format!("unread: {}", report.text(false)) };
    let of = |wanted: &dyn Fn(Verdict) -> bool| -> Vec<String> {
        let findings = object.findings.iter().filter(|finding| wanted(finding.verdict));
        findings.map(|finding| format!("{} {}", finding.path, finding.verdict.word())).collect()
    };
    let errors = of(&|verdict| verdict == Verdict::Error);
    if errors.is_empty() {
        let all = std::iter::once("accepted".to_owned()).chain(of(&|_| true));
        all.collect::<Vec<_>>().join(", ")
    } else {
        let errors: Vec<&str> = errors.iter().map(|error| error.trim_end_matches(" error")).collect();
        format!("refused {}", errors.join(", "))
    }
}

/// Manifests of many origins, `virtctl create vm` among them: what is valid upstream is not refused by accident.
#[test]
fn every_manifest_has_its_verdict() {
    let corpus = include_str!("../manifests/verdicts.yaml");
    let (mut count, mut wrong) = (0, Vec::new());
    for part in corpus.split("\n---\n").skip(1) {
        let (comment, document) = part.split_once('\n').unwrap();
        let wanted = comment.strip_prefix("# ").unwrap();
        let found = verdict(document);
        count += 1;
        let field = wanted.strip_prefix("refused ");
        let is_refused = field.is_some_and(|field| {
            found.strip_prefix("refused ").is_some_and(|found| found.split(", ").any(|one| one == field))
        });
        if !is_refused && found != wanted {
            wrong.push(format!("wanted: {wanted}\nfound:  {found}\n{document}"));
        }
    }
    assert!(count >= 120, "{count}");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
