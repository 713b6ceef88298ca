//! From an interface in a spec to how it is bound: pure. Which bindings exclude each other is for `virt::resolve`.

use api::kubevirt::{Interface, Network};
use ipnet::{Ipv4Net, Ipv6Net};

use super::{Binding, Port};

/// Networks of guests behind masquerade where the spec names none.
pub const V4: &str = "10.0.2.0/24";
/// The same of IPv6.
pub const V6: &str = "fd10:0:2::/120";

/// A network behind masquerade that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNetwork {
    /// The field of the pod network in the spec.
    pub field: &'static str,
    /// The defect.
    pub text: String,
}

impl Binding {
    /// The binding of an interface; `network` is the network of its name.
    ///
    /// # Errors
    /// The network behind masquerade has no room for a gateway and a guest.
    pub fn of(interface: &Interface, network: Option<&Network>) -> Result<Self, InvalidNetwork> {
        if interface.masquerade.is_none() {
            return Ok(Self::Bridge);
        }
        let pod = network.and_then(|network| network.pod.as_ref());
        let v4 = pod.and_then(|pod| pod.vm_network_cidr.as_deref()).unwrap_or(V4);
        let v6 = pod.and_then(|pod| pod.vm_ipv6_network_cidr.as_deref()).unwrap_or(V6);
        let v4: Option<Ipv4Net> = v4.parse().ok().filter(|net: &Ipv4Net| net.prefix_len() <= 30);
        let v6: Option<Ipv6Net> = v6.parse().ok().filter(|net: &Ipv6Net| net.prefix_len() <= 126);
        let no = |field, like: &str| InvalidNetwork {
            field,
            text: format!("not a network with room for a gateway and a guest, like {like}"),
        };
        let ports = interface.ports.iter().filter_map(|port| {
            let tcp = port.protocol.as_deref() != Some("UDP");
            Some(Port::one(tcp, port.port.filter(|number| *number > 0)?))
        });
        let ranges = interface.port_ranges.iter().filter_map(|range| {
            let number = u16::try_from(range.start).ok().filter(|number| *number > 0)?;
            let last = u16::try_from(range.end).ok().filter(|last| *last >= number)?;
            Some(Port { tcp: range.protocol != "UDP", number, last })
        });
        Ok(Self::Masquerade {
            v4: v4.ok_or_else(|| no("vmNetworkCIDR", V4))?,
            v6: v6.ok_or_else(|| no("vmIPv6NetworkCIDR", V6))?,
            ports: ports.chain(ranges).collect(),
        })
    }
}
