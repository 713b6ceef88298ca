//! The importer's pod: one for each transfer, named after its claim. Its container is started again by the kubelet until
//! it succeeds, and continues from its journal.
//!
//! ```text
//!  pull by the node: init copies a static server ─► the image's own container runs it ─► importer reads from it
//! ```

use api::import::{Content, Job, PullMethod, SourceKind, node};
use serde_json::{Value, json};

use super::pod::{Images, annotations, complete, environment, resources, restricted, target, verbosity};
use crate::storage::cron::seen::Cron;
use crate::storage::names;
use crate::storage::populate::task::Task;
use crate::storage::seen::source::{Protocol, Registry, Remote};
use crate::storage::seen::{Claim, Source};
use crate::storage::settings::Settings;

const CERTIFICATES: &str = "/certs";
const PROXY_CERTIFICATES: &str = api::names::PROXY_CERT_DIR;
const REGISTRY_LOGIN: &str = "/registry-login";
/// Annotation of pods: OpenShift resolves names of image streams in their images.
const RESOLVES_NAMES: &str = "alpha.image.policy.openshift.io/resolve-names";

/// The inputs of an importer's pod.
#[derive(Clone, Copy, Debug)]
pub struct Import<'a> {
    /// The user's claim; its annotations pass to the pod.
    pub target: &'a Claim,
    /// The claim that is written to: the target or its prime.
    pub written: &'a Claim,
    /// Owner reference to the written claim.
    pub owner: &'a Value,
    /// The content to import.
    pub task: &'a Task,
    /// Settings of transfers.
    pub settings: &'a Settings,
    /// Worker images.
    pub images: &'a Images,
}

/// Parts of a pod that a source needs.
#[derive(Default)]
struct Parts {
    volumes: Vec<Value>,
    mounts: Vec<Value>,
    variables: Vec<Value>,
    /// Containers that run before and next to the importer.
    before: Vec<Value>,
    beside: Vec<Value>,
    /// Secrets by which the node pulls images.
    logins: Vec<Value>,
    /// Architecture of the node; empty for any.
    architecture: String,
    /// Whether an image is named by its ImageStream.
    resolves_names: bool,
}

impl Parts {
    fn mount(&mut self, name: &str, at: &str, volume: &Value) {
        let mut whole = json!({"name": name});
        for (field, value) in volume.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        self.volumes.push(whole);
        self.mounts.push(json!({"name": name, "mountPath": at, "readOnly": true}));
    }

    fn certificates(&mut self, job: &mut Job, map: &str) {
        if !map.is_empty() {
            job.cert_dir = CERTIFICATES.to_owned();
            self.mount("cdi-cert-vol", CERTIFICATES, &json!({"configMap": {"name": map}}));
        }
    }

    fn proxy_certificates(&mut self, job: &mut Job, map: &str) {
        if !map.is_empty() {
            job.proxy_cert_dir = PROXY_CERTIFICATES.to_owned();
            self.mount("cdi-proxy-cert-vol", PROXY_CERTIFICATES, &json!({"configMap": {"name": map}}));
        }
    }

    fn keys(&mut self, secret: &str) {
        for (variable, key) in
            [("IMPORTER_ACCESS_KEY_ID", "accessKeyId"), ("IMPORTER_SECRET_KEY", "secretKey")]
        {
            // A Secret of type kubernetes.io/dockerconfigjson has neither.
            let from = json!({"secretKeyRef": {"name": secret, "key": key, "optional": true}});
            self.variables.push(json!({"name": variable, "valueFrom": from}));
        }
    }
}

/// The pod. `None` for a source that no importer fetches.
pub fn pod(import: &Import<'_>) -> Option<Value> {
    let Import { target: user, written, owner, task, settings, images } = *import;
    let mut parts = Parts::default();
    let mut job = Job {
        content: if task.archive { Content::Archive } else { Content::Kubevirt },
        image_size: Some(user.size),
        owner_uid: task.owner_uid.clone(),
        filesystem_overhead: settings.overhead_of(user.class.as_deref(), user.block).share(),
        preallocation: task.preallocation,
        http_proxy: settings.proxy.http.clone(),
        https_proxy: settings.proxy.https.clone(),
        no_proxy: settings.proxy.exceptions.clone(),
        ..Job::default()
    };
    match &task.source {
        Source::Remote(remote) => remote_job(remote, &mut job, &mut parts),
        Source::Registry(registry) if registry.by_node => {
            node_job(registry, (settings, images), &mut job, &mut parts)?;
        }
        Source::Registry(registry) if registry.image_stream.is_empty() => {
            registry_job(registry, settings, &mut job, &mut parts);
        }
        Source::Blank => job.source = SourceKind::None,
        Source::Registry(_)
        | Source::Upload
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => return None,
    }
    if goes_by_proxy(&task.source, settings) {
        parts.proxy_certificates(&mut job, &proxy_map_of(written));
    }
    Some(assemble(import, &job, parts, owner, images))
}

/// Whether the import of a source trusts the proxy's certificates, too.
pub fn goes_by_proxy(source: &Source, settings: &Settings) -> bool {
    !settings.proxy.certificates.is_empty() && *source != Source::Blank
}

/// Name of the ConfigMap with the proxy's certificates for a worker.
pub fn proxy_map(worker: &str) -> String {
    names::fitted("import-proxy-cm", worker)
}

/// The same for the importer of a claim. A claim that is made again has another one: the old one goes with the old claim.
pub fn proxy_map_of(written: &Claim) -> String {
    proxy_map(&format!("{}-{}", written.meta.name, names::digest(&written.meta.uid, 8)))
}

/// That ConfigMap: a copy of the installation's, which pods of other namespaces cannot mount.
pub fn proxy_certificates(name: &str, namespace: &str, owner: &Value, trusted: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"app": names::APP}, "ownerReferences": [owner],
        },
        "data": trusted["data"],
    })
}

/// The owner reference to a DataImportCron.
pub fn owned_by(cron: &Cron) -> Value {
    json!({
        "apiVersion": names::API_VERSION, "kind": "DataImportCron", "name": cron.meta.name,
        "uid": cron.meta.uid, "controller": true, "blockOwnerDeletion": true,
    })
}

/// The pod that reports the version of a DataImportCron's source. `None` for a source without versions. `proxy`: the
/// ConfigMap with the proxy's certificates; empty for none.
pub fn poll(cron: &Cron, settings: &Settings, images: &Images, proxy: &str) -> Option<Value> {
    let mut parts = Parts::default();
    let mut job = Job {
        http_proxy: settings.proxy.http.clone(),
        https_proxy: settings.proxy.https.clone(),
        no_proxy: settings.proxy.exceptions.clone(),
        ..Job::default()
    };
    match &cron.source {
        Source::Remote(remote) => remote_job(remote, &mut job, &mut parts),
        Source::Registry(registry) => registry_job(registry, settings, &mut job, &mut parts),
        Source::Blank
        | Source::Upload
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => return None,
    }
    parts.proxy_certificates(&mut job, proxy);
    let mut variables = environment(job.to_env());
    variables.extend(parts.variables);
    let mut spec = json!({
        "restartPolicy": "OnFailure",
        "containers": [{
            "name": "importer",
            "image": images.importer,
            "imagePullPolicy": images.pull_policy,
            "args": ["inspect", verbosity(settings)],
            "env": variables,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": resources(settings),
            "securityContext": restricted(),
            "volumeMounts": parts.mounts,
        }],
        "volumes": parts.volumes,
    });
    let mut user = Claim::default();
    if let Some(account) = cron.template["spec"]["serviceAccountName"].as_str() {
        user.meta.annotations.insert(names::SERVICE_ACCOUNT.to_owned(), account.to_owned());
    }
    complete(&mut spec, &user, settings);
    Some(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names::fitted("poll", &cron.meta.name),
            "namespace": cron.meta.namespace,
            "labels": {"app": names::APP, names::WORKER: names::IMPORTER, names::POLLER: "true"},
            "annotations": annotations(&user, names::CREATED_BY_CONTROLLER),
            "ownerReferences": [owned_by(cron)],
        },
        "spec": spec,
    }))
}

fn assemble(import: &Import<'_>, job: &Job, parts: Parts, owner: &Value, images: &Images) -> Value {
    let Import { target: user, written, settings, .. } = *import;
    let (volume, mut mounts, devices) = target(written);
    if let Some(mounts) = mounts.as_array_mut() {
        mounts.extend(parts.mounts);
    }
    let mut variables = environment(job.to_env());
    variables.extend(parts.variables);
    let mut volumes = vec![volume];
    volumes.extend(parts.volumes);
    let name = names::importer_pod(&written.meta.name);
    let mut annotations = annotations(user, names::CREATED_BY_CONTROLLER);
    if parts.resolves_names {
        annotations[RESOLVES_NAMES] = json!("*");
    }
    let mut spec = json!({
        "restartPolicy": "OnFailure",
        "containers": [{
            "name": "importer",
            "image": images.importer,
            "imagePullPolicy": images.pull_policy,
            "args": [verbosity(settings)],
            "env": variables,
            "ports": [{"name": "metrics", "containerPort": api::names::METRICS_PORT, "protocol": "TCP"}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": resources(settings),
            "securityContext": restricted(),
            "volumeMounts": mounts,
            "volumeDevices": devices,
        }],
        "volumes": volumes,
    });
    complete(&mut spec, user, settings);
    if let Some(containers) = spec["containers"].as_array_mut() {
        containers.extend(parts.beside);
    }
    if !parts.before.is_empty() {
        spec["initContainers"] = Value::Array(parts.before);
    }
    if !parts.logins.is_empty() {
        let mut logins = spec["imagePullSecrets"].as_array().cloned().unwrap_or_default();
        logins.extend(parts.logins);
        spec["imagePullSecrets"] = Value::Array(logins);
    }
    if !parts.architecture.is_empty() {
        spec["nodeSelector"]["kubernetes.io/arch"] = json!(parts.architecture);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": written.meta.namespace,
            "labels": {"app": names::APP, names::WORKER: names::IMPORTER, "prometheus.cdi.kubevirt.io": "true"},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": spec,
    })
}

fn remote_job(remote: &Remote, job: &mut Job, parts: &mut Parts) {
    job.source = match remote.protocol {
        Protocol::Http => SourceKind::Http,
        Protocol::S3 => SourceKind::S3,
        Protocol::Gcs => SourceKind::Gcs,
    };
    job.endpoint.clone_from(&remote.url);
    job.checksum.clone_from(&remote.checksum);
    job.extra_headers.clone_from(&remote.headers);
    job.insecure_tls = remote.insecure;
    parts.certificates(job, &remote.certificates);
    for (number, secret) in remote.secret_headers.iter().enumerate() {
        let at = format!("{}/{number}", api::names::SECRET_HEADERS_DIR);
        let secret = json!({"secret": {"secretName": secret}});
        parts.mount(&format!("cdi-secret-extra-headers-vol-{number}"), &at, &secret);
    }
    match remote.protocol {
        _ if remote.secret.is_empty() => {}
        Protocol::Gcs => {
            job.google_credentials = api::names::GOOGLE_CREDENTIALS.to_owned();
            let directory =
                api::names::GOOGLE_CREDENTIALS.rsplit_once('/').map_or("/", |(directory, _)| directory);
            parts.mount("cdi-secret-vol", directory, &json!({"secret": {"secretName": remote.secret}}));
        }
        Protocol::Http | Protocol::S3 => parts.keys(&remote.secret),
    }
}

/// An image that the kubelet pulls: its container runs a server, copied into it, that offers the disk. `None` for what no
/// kubelet pulls.
fn node_job(
    registry: &Registry,
    (settings, images): (&Settings, &Images),
    job: &mut Job,
    parts: &mut Parts,
) -> Option<()> {
    const SHARED: &str = "/shared";
    const SERVER: &str = "/shared/server";
    parts.resolves_names = !registry.image_stream.is_empty();
    let image = match parts.resolves_names {
        true => registry.image_stream.as_str(),
        false => registry.url.strip_prefix("docker://")?,
    };
    job.source = SourceKind::Http;
    job.pull_method = PullMethod::Node;
    job.endpoint = format!("http://localhost:{}{}", node::SERVER_PORT, node::DISK_PATH);
    job.ready_file = node::READY_FILE.to_owned();
    job.done_file = node::DONE_FILE.to_owned();
    parts.volumes.push(json!({"name": "shared-volume", "emptyDir": {}}));
    let mount = json!({"name": "shared-volume", "mountPath": SHARED});
    parts.mounts.push(mount.clone());
    let container = |name: &str, image: &str, command: Value| {
        json!({
            "name": name, "image": image, "imagePullPolicy": images.pull_policy, "command": command,
            "resources": resources(settings), "securityContext": restricted(), "volumeMounts": [mount],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        })
    };
    let copy = json!(["sh", "-c", format!("cp /usr/bin/cdi-containerimage-server {SERVER}")]);
    parts.before.push(container("init", &images.importer, copy));
    let serve = json!([
        SERVER,
        "-p",
        node::SERVER_PORT.to_string(),
        "-image-dir",
        node::IMAGE_DIR,
        "-ready-file",
        node::READY_FILE,
        "-done-file",
        node::DONE_FILE,
    ]);
    parts.beside.push(container("server", image, serve));
    parts.logins.extend((!registry.secret.is_empty()).then(|| json!({"name": registry.secret})));
    parts.architecture.clone_from(&registry.architecture);
    Some(())
}

fn registry_job(registry: &Registry, settings: &Settings, job: &mut Job, parts: &mut Parts) {
    job.source = SourceKind::Registry;
    job.endpoint.clone_from(&registry.url);
    job.registry_architecture.clone_from(&registry.architecture);
    job.insecure_tls = settings.trusts_registry(&registry.url);
    parts.certificates(job, &registry.certificates);
    if !registry.secret.is_empty() {
        parts.keys(&registry.secret);
        // The login of `kubectl create secret docker-registry`, where the Secret is one.
        job.registry_auth_file = format!("{REGISTRY_LOGIN}/config.json");
        let items = json!([{"key": ".dockerconfigjson", "path": "config.json"}]);
        let secret = json!({"secret": {"secretName": registry.secret, "items": items, "optional": true}});
        parts.mount("cdi-registry-login", REGISTRY_LOGIN, &secret);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(block: bool) -> Claim {
        Claim::from(&json!({
            "metadata": {"name": "prime-u", "namespace": "n", "uid": "p",
                "annotations": {"sidecar.istio.io/inject": "true", names::SERVICE_ACCOUNT: "puller"}},
            "spec": {"volumeMode": if block { "Block" } else { "Filesystem" }, "resources": {"requests": {"storage": "1Gi"}}},
        }))
    }

    fn made(source: &Value, block: bool, settings: &Settings) -> Option<Value> {
        let task = Task {
            source: Source::from(source),
            archive: false,
            preallocation: true,
            owner_uid: "o".into(),
            priority: String::new(),
        };
        let images =
            Images { importer: "image".into(), pull_policy: "IfNotPresent".into(), ..Images::default() };
        let (claim, owner) = (claim(block), json!({"uid": "p"}));
        pod(&Import {
            target: &claim,
            written: &claim,
            owner: &owner,
            task: &task,
            settings,
            images: &images,
        })
    }

    /// The job as the importer reads it, without what comes from Secrets.
    fn job(pod: &Value) -> Job {
        let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap().iter();
        let plain =
            variables.filter_map(|one| Some((one["name"].as_str()?, one["value"].as_str()?.to_owned())));
        Job::from_env(plain).unwrap()
    }

    #[test]
    fn the_importer_reads_the_job_that_the_source_describes() {
        let settings = Settings { insecure_registries: vec!["reg:5000".into()], ..Settings::default() };
        let pod = made(&json!({"http": {"url": "https://a/b", "checksum": "md5:1", "extraHeaders": ["a: b"], "certConfigMap": "ca",
                "secretRef": "keys", "secretExtraHeaders": ["h"]}}),
            false,
            &settings,
        )
        .unwrap();
        let expected = Job {
            source: SourceKind::Http,
            endpoint: "https://a/b".into(),
            checksum: "md5:1".into(),
            extra_headers: vec!["a: b".into()],
            cert_dir: "/certs".into(),
            image_size: Some(1 << 30),
            filesystem_overhead: 0.06,
            preallocation: true,
            owner_uid: "o".into(),
            ..Job::default()
        };
        assert_eq!(job(&pod), expected);
        let container = &pod["spec"]["containers"][0];
        assert!(
            container["env"].to_string().contains(r#""secretKeyRef":{"key":"accessKeyId","name":"keys""#)
        );
        let mounts: Vec<_> = container["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["mountPath"].as_str().unwrap())
            .collect();
        assert_eq!(mounts, ["/data", "/certs", "/extraheaders/0"]);
        let registry =
            made(&json!({"registry": {"url": "docker://reg:5000/a", "secretRef": "s"}}), true, &settings)
                .unwrap();
        let read = job(&registry);
        assert!(read.insecure_tls && read.source == SourceKind::Registry && read.filesystem_overhead == 0.0);
        assert_eq!(read.registry_auth_file, "/registry-login/config.json");
        assert_eq!(
            registry["spec"]["containers"][0]["volumeDevices"][0]["devicePath"],
            "/dev/cdi-block-volume"
        );
        let blank = made(&json!({"blank": {}}), true, &settings).unwrap();
        assert_eq!(job(&blank).source, SourceKind::None);
        for none in [
            json!({"upload": {}}),
            json!({"pvc": {"name": "a"}}),
            json!({"registry": {"url": "oci-archive:a", "pullMethod": "node"}}),
            json!({"registry": {"imageStream": "a"}}),
        ] {
            assert_eq!(made(&none, false, &settings), None);
        }
    }

    #[test]
    fn pods_are_restricted_and_belong_to_their_claim() {
        let pod = made(&json!({"blank": {}}), false, &Settings::default()).unwrap();
        assert_eq!(
            (&pod["metadata"]["name"], &pod["metadata"]["ownerReferences"][0]["uid"]),
            (&json!("importer-prime-u"), &json!("p"))
        );
        let spec = &pod["spec"];
        assert_eq!(
            (&spec["automountServiceAccountToken"], &spec["serviceAccountName"]),
            (&json!(false), &json!("puller"))
        );
        let security = &spec["containers"][0]["securityContext"];
        assert_eq!(
            (&security["runAsUser"], &security["capabilities"]["drop"][0]),
            (&json!(107), &json!("ALL"))
        );
        assert_eq!(pod["metadata"]["annotations"]["sidecar.istio.io/inject"], "true");
        assert_eq!(pod["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
    }

    #[test]
    fn the_node_pulls_an_image_and_its_container_serves_the_disk() {
        let source = json!({"registry": {"url": "docker://reg/a:1", "pullMethod": "node", "secretRef": "login",
            "platform": {"architecture": "amd64"}}});
        let settings = Settings { pull_secrets: vec!["own".into()], ..Settings::default() };
        let pod = made(&source, false, &settings).unwrap();
        let read = job(&pod);
        assert_eq!((read.source, read.pull_method), (SourceKind::Http, PullMethod::Node));
        assert_eq!(
            (read.endpoint.as_str(), read.ready_file.as_str()),
            ("http://localhost:8100/disk.img", "/shared/ready")
        );
        let spec = &pod["spec"];
        assert_eq!(
            (&spec["containers"][0]["name"], &spec["containers"][1]["image"]),
            (&json!("importer"), &json!("reg/a:1"))
        );
        assert_eq!(spec["containers"][1]["command"][0], "/shared/server");
        assert_eq!(spec["initContainers"][0]["image"], "image");
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "own"}, {"name": "login"}]));
        assert_eq!(spec["nodeSelector"]["kubernetes.io/arch"], "amd64");
        let text = spec.to_string();
        assert!(!text.contains("accessKeyId") && text.matches("emptyDir").count() == 1);
        assert_eq!(text.matches(r#""readOnlyRootFilesystem":true"#).count(), 3, "{text}");
        assert!(pod["metadata"]["annotations"].get(RESOLVES_NAMES).is_none());
        let stream = json!({"registry": {"imageStream": "fedora:41", "pullMethod": "node"}});
        let pod = made(&stream, false, &settings).unwrap();
        assert_eq!(pod["spec"]["containers"][1]["image"], "fedora:41");
        assert_eq!(pod["metadata"]["annotations"][RESOLVES_NAMES], "*");
    }

    #[test]
    fn a_poll_mounts_what_the_source_needs_and_no_volume() {
        let cron = Cron::from(&json!({
            "metadata": {"name": "nightly", "namespace": "n", "uid": "c"},
            "spec": {"template": {"spec": {"source": {"registry": {"url": "docker://reg/a", "secretRef": "s"}}}}},
        }));
        let pod = poll(&cron, &Settings::default(), &Images::default(), "").unwrap();
        assert_eq!(pod["metadata"]["name"], "poll-nightly");
        assert_eq!(pod["spec"]["containers"][0]["args"][0], "inspect");
        let read = job(&pod);
        assert_eq!(
            (read.source, read.registry_auth_file.as_str()),
            (SourceKind::Registry, "/registry-login/config.json")
        );
        assert_eq!(pod["spec"]["volumes"].as_array().map(Vec::len), Some(1));
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(
            crate::storage::seen::Meta::from(&pod).controller().map(|owner| owner.uid.clone()),
            Some("c".into())
        );
    }

    #[test]
    fn workers_mount_the_copy_of_the_proxys_certificates() {
        let settings = Settings::from(&json!({"spec": {"importProxy": {"trustedCAProxy": "trusted"}}}));
        let mounted = |pod: &Value| {
            let volumes = pod["spec"]["volumes"].as_array().unwrap();
            let found = volumes.iter().find(|volume| volume["name"] == "cdi-proxy-cert-vol");
            let name = found.map(|volume| volume["configMap"]["name"].as_str().unwrap().to_owned());
            (name, job(pod).proxy_cert_dir)
        };
        let import = made(&json!({"http": {"url": "https://a/b"}}), false, &settings).unwrap();
        assert_eq!(mounted(&import), (Some(proxy_map_of(&claim(false))), PROXY_CERTIFICATES.to_owned()));
        let blank = made(&json!({"blank": {}}), false, &settings).unwrap();
        assert_eq!(mounted(&blank), (None, String::new()));
        let cron = Cron::from(&json!({
            "metadata": {"name": "nightly", "namespace": "n", "uid": "c"},
            "spec": {"template": {"spec": {"source": {"http": {"url": "https://a/b"}}}}},
        }));
        let poll = |proxy: &str| poll(&cron, &settings, &Images::default(), proxy).unwrap();
        assert_eq!(mounted(&poll("copy")), (Some("copy".to_owned()), PROXY_CERTIFICATES.to_owned()));
        assert_eq!(mounted(&poll("")).0, None);
        let trusted = json!({"metadata": {"name": "trusted"}, "data": {"ca.pem": "x"}});
        let map = proxy_certificates(&proxy_map_of(&claim(false)), "n", &owned_by(&cron), &trusted);
        let name = map["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("import-proxy-cm-prime-u-") && map["data"]["ca.pem"] == "x", "{map}");
        let mut again = claim(false);
        again.meta.uid = "again".to_owned();
        assert_ne!(proxy_map_of(&again), name);
        assert_eq!(map["metadata"]["ownerReferences"][0]["uid"], "c");
    }

    #[test]
    fn limits_are_raised_to_requests() {
        let settings =
            Settings::from(&json!({"spec": {"podResourceRequirements": {"requests": {"memory": "2Gi"}}}}));
        let pod = made(&json!({"blank": {}}), false, &settings).unwrap();
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "2Gi");
    }
}
