//! Volumes of `create vm`: `--volume-containerdisk`, `--volume-pvc`, `--volume-import` and `--volume-sysprep`, each with
//! parameters `key:value,…`. Pure.

use serde_json::{Value, json};

use super::parameters::Parameters;
use crate::error::{Result, usage};

/// Flags of volumes; each may be repeated.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "volume-flags")]
pub(super) struct Options {
    /// Container disk: src:IMAGE[,name:NAME][,bootorder:N]
    #[arg(long, value_name = "PARAMETERS")]
    volume_containerdisk: Vec<String>,
    /// PersistentVolumeClaim: src:NAME[,name:NAME][,bootorder:N]
    #[arg(long, value_name = "PARAMETERS")]
    volume_pvc: Vec<String>,
    /// New volume: type:TYPE[,size:SIZE][,name:NAME][,bootorder:N] and the source's parameters. Types: blank; http, s3,
    /// gcs, registry (url:URL[,secretref:SECRET][,certconfigmap:CONFIGMAP], the last one not for gcs); registry also
    /// pullmethod:pod|node and imagestream:NAME in place of url; pvc, snapshot, ds (src:[NAMESPACE/]NAME)
    #[arg(long, value_name = "PARAMETERS")]
    volume_import: Vec<String>,
    /// Sysprep answers: src:NAME[,type:configMap|secret]
    #[arg(long, value_name = "PARAMETERS")]
    volume_sysprep: Vec<String>,
}

/// Parts that the flags add to a machine.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    pub(super) volumes: Vec<Value>,
    pub(super) disks: Vec<Value>,
    pub(super) templates: Vec<Value>,
    /// Volumes that an instance type can be inferred from, the first to boot first.
    pub(super) inferable: Vec<String>,
}

impl Volumes {
    /// Adds a volume with the source in `volume`.
    pub(super) fn add(&mut self, name: &str, mut volume: Value) -> Result<()> {
        if self.volumes.iter().any(|one| one["name"] == name) {
            return usage(format!("there is more than one volume named {name:?}"));
        }
        volume["name"] = json!(name);
        self.volumes.push(volume);
        Ok(())
    }
}

/// The volumes of a machine.
pub(super) fn volumes(typed: &Options, machine: &str) -> Result<Volumes> {
    let mut all = Volumes::default();
    let mut ordered: Vec<(Option<u32>, String)> = Vec::new();
    let disk = |all: &mut Volumes, name: &str, order: Option<u32>| {
        if let Some(order) = order {
            all.disks.push(json!({"name": name, "bootOrder": order, "disk": {}}));
        }
    };
    for (number, text) in (1..).zip(&typed.volume_containerdisk) {
        let mut given = Parameters::read("volume-containerdisk", text)?;
        let image = given.need("src")?;
        let name =
            given.take("name").map_or_else(|| format!("{machine}-containerdisk-{number}"), str::to_owned);
        let order = given.boot_order()?;
        given.end()?;
        all.add(&name, json!({"containerDisk": {"image": image}}))?;
        disk(&mut all, &name, order);
    }
    for text in &typed.volume_pvc {
        let mut given = Parameters::read("volume-pvc", text)?;
        let claim = given.need("src")?;
        let name = given.take("name").unwrap_or(claim).to_owned();
        let order = given.boot_order()?;
        given.end()?;
        all.add(&name, json!({"persistentVolumeClaim": {"claimName": claim}}))?;
        disk(&mut all, &name, order);
        ordered.push((order, name));
    }
    for (number, text) in (1..).zip(&typed.volume_import) {
        let mut given = Parameters::read("volume-import", text)?;
        let name = given.take("name").map_or_else(|| format!("{machine}-import-{number}"), str::to_owned);
        let order = given.boot_order()?;
        let kind = given.need("type")?;
        let template = template(&mut given, kind, &name)?;
        given.end()?;
        all.templates.push(template);
        all.add(&name, json!({"dataVolume": {"name": name}}))?;
        disk(&mut all, &name, order);
        if matches!(kind, "pvc" | "ds" | "snapshot" | "registry") {
            ordered.push((order, name));
        }
    }
    for text in &typed.volume_sysprep {
        let mut given = Parameters::read("volume-sysprep", text)?;
        let source = given.need("src")?;
        let volume = match given.take("type").unwrap_or("configMap") {
            "configMap" => json!({"sysprep": {"configMap": {"name": source}}}),
            "secret" => json!({"sysprep": {"secret": {"name": source}}}),
            _ => return Err(given.wrong("type is neither configMap nor secret")),
        };
        given.end()?;
        all.add("sysprepdisk", volume)?;
        all.disks.push(json!({"name": "sysprepdisk", "cdrom": {"bus": "sata"}}));
    }
    ordered.sort_by_key(|(order, _)| order.unwrap_or(u32::MAX));
    all.inferable = ordered.into_iter().map(|(_, name)| name).collect();
    Ok(all)
}

/// The DataVolume that fills a volume.
fn template(given: &mut Parameters<'_>, kind: &str, name: &str) -> Result<Value> {
    let size = given.take("size");
    let mut storage = json!({});
    if let Some(size) = size {
        storage["resources"] = json!({"requests": {"storage": size}});
    }
    let mut spec = match kind {
        "blank" => json!({"source": {"blank": {}}}),
        "http" | "s3" | "gcs" | "registry" => {
            let stream = if kind == "registry" { given.take("imagestream") } else { None };
            let mut source = match stream {
                Some(stream) => json!({"imageStream": stream}),
                None => json!({"url": given.need("url")?}),
            };
            let fields: &[(&str, &str)] = match kind {
                "gcs" => &[("secretref", "secretRef")],
                "registry" => &[
                    ("secretref", "secretRef"),
                    ("certconfigmap", "certConfigMap"),
                    ("pullmethod", "pullMethod"),
                ],
                _ => &[("secretref", "secretRef"), ("certconfigmap", "certConfigMap")],
            };
            for (parameter, field) in fields {
                if let Some(value) = given.take(parameter) {
                    source[*field] = json!(value);
                }
            }
            if source.get("pullMethod").is_some_and(|method| method != "pod" && method != "node") {
                return Err(given.wrong("pullmethod is neither pod nor node"));
            }
            json!({"source": {kind: source}})
        }
        "pvc" | "snapshot" | "ds" => {
            let source = given.need("src")?;
            let (namespace, source) = match source.split_once('/') {
                Some((namespace, source)) => (Some(namespace), source),
                None => (None, source),
            };
            let mut named = json!({"name": source});
            if let Some(namespace) = namespace {
                named["namespace"] = json!(namespace);
            }
            match kind {
                "ds" => {
                    named["kind"] = json!("DataSource");
                    json!({"sourceRef": named})
                }
                _ if namespace.is_none() => return Err(given.wrong("src is not NAMESPACE/NAME")),
                kind => json!({"source": {kind: named}}),
            }
        }
        _ => return Err(given.wrong("type is not one of blank, http, s3, gcs, registry, pvc, snapshot, ds")),
    };
    if size.is_none() && matches!(kind, "blank" | "http" | "s3" | "gcs" | "registry") {
        return Err(given.wrong("size is missing"));
    }
    spec["storage"] = storage;
    Ok(json!({"metadata": {"name": name}, "spec": spec}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(flag: &str, text: &str) -> Result<Volumes> {
        let mut typed = Options::default();
        let list = match flag {
            "containerdisk" => &mut typed.volume_containerdisk,
            "pvc" => &mut typed.volume_pvc,
            "import" => &mut typed.volume_import,
            _ => &mut typed.volume_sysprep,
        };
        list.push(text.to_owned());
        volumes(&typed, "m")
    }

    #[test]
    fn parameters_become_volumes() {
        let disk = one("containerdisk", "src:quay.io/a/b:1,name:root,bootorder:1").unwrap();
        assert_eq!(disk.volumes, [json!({"name": "root", "containerDisk": {"image": "quay.io/a/b:1"}})]);
        assert_eq!(disk.disks, [json!({"name": "root", "bootOrder": 1, "disk": {}})]);
        let pvc = one("pvc", "src:c").unwrap();
        assert_eq!((pvc.disks.len(), pvc.inferable), (0, vec!["c".to_owned()]));
        let import = one("import", "type:http,url:https://h:1/a.qcow2,size:5Gi").unwrap();
        assert_eq!(
            import.templates,
            [json!({"metadata": {"name": "m-import-1"}, "spec": {
                "source": {"http": {"url": "https://h:1/a.qcow2"}},
                "storage": {"resources": {"requests": {"storage": "5Gi"}}}}})]
        );
        let pulled = "type:registry,imagestream:os,certconfigmap:ca,pullmethod:node,secretref:login,size:1Gi";
        let pulled = one("import", pulled).unwrap();
        assert_eq!(
            pulled.templates[0]["spec"]["source"],
            json!({"registry": {"imageStream": "os", "certConfigMap": "ca", "pullMethod": "node", "secretRef": "login"}})
        );
        let cloned = one("import", "type:ds,src:os/fedora,name:root").unwrap();
        let reference = json!({"kind": "DataSource", "namespace": "os", "name": "fedora"});
        assert_eq!(cloned.templates[0]["spec"]["sourceRef"], reference);
        assert_eq!(cloned.inferable, ["root"]);
        let answers = one("sysprep", "src:a,type:secret").unwrap();
        assert_eq!(answers.volumes, [json!({"name": "sysprepdisk", "sysprep": {"secret": {"name": "a"}}})]);
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (flag, text, part) in [
            ("pvc", "name:x", "src is missing"),
            ("pvc", "src:x,bootorder:0", "bootorder"),
            ("pvc", "src:x,colour:red", "colour is not a parameter"),
            ("pvc", "x", "is not KEY:VALUE"),
            ("pvc", "src:x,src:y", "given twice"),
            ("import", "type:http,url:u", "size is missing"),
            ("import", "type:pvc,src:x", "NAMESPACE/NAME"),
            ("import", "type:tape", "type is not one of"),
            ("import", "type:registry,url:u,pullmethod:wire,size:1Gi", "pullmethod is neither"),
            ("import", "type:registry,url:u,imagestream:s,size:1Gi", "url is not a parameter"),
            ("import", "type:gcs,url:u,certconfigmap:c,size:1Gi", "certconfigmap is not a parameter"),
            ("sysprep", "src:x,type:pvc", "neither"),
        ] {
            let error = one(flag, text).unwrap_err().chain();
            assert!(error.contains(part), "{text}: {error}");
        }
        let twice = Options { volume_pvc: vec!["src:x".to_owned(); 2], ..Options::default() };
        assert!(volumes(&twice, "m").unwrap_err().chain().contains("more than one volume"));
    }
}
