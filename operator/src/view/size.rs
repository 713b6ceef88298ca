//! The size of a guest, as the domain of a VM or instance has it, and of a volume, as a DataVolume requests it.

use serde::Deserialize;
use serde_json::Value;

/// CPU topology and memory, as far as they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub(crate) struct Size {
    pub(crate) cores: Option<u64>,
    pub(crate) sockets: Option<u64>,
    pub(crate) threads: Option<u64>,
    /// Bytes of memory that the guest sees.
    pub(crate) guest: Option<u64>,
    /// Bytes of memory that the pod requests for it.
    pub(crate) requested: Option<u64>,
    /// Bytes of memory that the pod may use for it.
    pub(crate) limit: Option<u64>,
    /// Thousandths of a CPU that the pod may use for it.
    pub(crate) cpu_limit: Option<u64>,
}

impl Size {
    /// Whether a topology is written.
    pub(crate) fn has_topology(&self) -> bool {
        self.cores.is_some() || self.sockets.is_some() || self.threads.is_some()
    }
}

/// Bytes of a quantity.
fn bytes(quantity: Option<&Value>) -> Option<u64> {
    let quantity = quantity?;
    quantity.as_u64().or_else(|| api::quantity::bytes(quantity.as_str()?).ok())
}

/// Thousandths of a quantity, which may be written as a number.
fn thousandths(quantity: Option<&Value>) -> Option<u64> {
    let quantity = quantity?;
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), str::to_owned);
    api::quantity::thousandths(&text).ok()
}

/// Bytes that the spec of a DataVolume requests, in `pvc` or `storage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenVolume")]
pub(crate) struct Requested(pub(crate) Option<u64>);

/// The spec of a DataVolume as the API server writes it, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenVolume {
    pvc: Value,
    storage: Value,
}

impl From<WrittenVolume> for Requested {
    fn from(WrittenVolume { pvc, storage }: WrittenVolume) -> Self {
        let of = |form: &Value| bytes(form.pointer("/resources/requests/storage"));
        Self(of(&pvc).or_else(|| of(&storage)))
    }
}

/// A domain as the API server writes it, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Written {
    cpu: Value,
    memory: Value,
    resources: Value,
}

impl From<Written> for Size {
    fn from(written: Written) -> Self {
        let Written { cpu, memory, resources } = written;
        let number = |name: &str| cpu.get(name).and_then(Value::as_u64);
        Self {
            cores: number("cores"),
            sockets: number("sockets"),
            threads: number("threads"),
            guest: bytes(memory.get("guest")),
            requested: bytes(resources.pointer("/requests/memory")),
            limit: bytes(resources.pointer("/limits/memory")),
            cpu_limit: thousandths(resources.pointer("/limits/cpu")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_read_as_far_as_they_are_written() {
        let size = |domain: Value| serde_json::from_value::<Size>(domain).unwrap();
        assert_eq!(size(json!({"devices": {}})), Size::default());
        let read = size(json!({
            "cpu": {"cores": 2, "model": "host-model"},
            "memory": {"guest": "1Gi"},
            "resources": {"requests": {"memory": 1000}, "limits": {"memory": "2Gi", "cpu": "1500m"}},
        }));
        let wanted = Size {
            cores: Some(2),
            guest: Some(1 << 30),
            requested: Some(1000),
            limit: Some(2 << 30),
            cpu_limit: Some(1500),
            ..Size::default()
        };
        assert_eq!(read, wanted);
        assert_eq!(size(json!({"resources": {"limits": {"cpu": 2}}})).cpu_limit, Some(2000));
        assert!(read.has_topology() && !Size::default().has_topology());
        let requested = |spec: Value| serde_json::from_value::<Requested>(spec).unwrap().0;
        let form = json!({"resources": {"requests": {"storage": "1Gi"}}});
        assert_eq!(requested(json!({"pvc": form})), Some(1 << 30));
        assert_eq!(requested(json!({"storage": form, "source": {"blank": {}}})), Some(1 << 30));
        assert_eq!(requested(json!({"storage": {}})), None);
    }
}
