//! The plugin `static`: the addresses, routes and name servers of the configuration. It keeps no state, so DEL and GC have
//! nothing to do.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Error;
use crate::ipam::host_local::one_per_family;
use crate::protocol::{Call, Dns, IpConfig, Outcome, Plugin, address_at, network, read_route};

/// The plugin.
pub(crate) struct Fixed;

/// `ipam.addresses`, those of CNI_ARGS after them; `args.cni.ips` and `runtimeConfig.ips` instead of all before.
pub(super) fn addresses(call: &Call) -> Result<Vec<IpConfig>, Error> {
    let ipam = call.config.object("ipam")?;
    call.arguments.only(&["IP", "GATEWAY", "MAC"])?;
    let mut ips = Vec::new();
    for keys in ipam.objects("addresses")? {
        let gateway = address_at(keys, "gateway")?.map(|gateway| gateway.to_canonical());
        ips.push(IpConfig { interface: None, address: network(keys, "address")?, gateway });
    }
    for text in call.arguments.get("IP").into_iter().flat_map(|list| list.split(',')) {
        ips.push(alone(text.trim())?);
    }
    for text in call.arguments.get("GATEWAY").into_iter().flat_map(|list| list.split(',')) {
        let text = text.trim();
        let gateway: IpAddr = text.parse().map_err(|_| {
            Error::config(format!("CNI_ARGS: the gateway \"{}\" is not an address", text.escape_debug()))
        })?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    for instead in [
        call.config.object("args")?.object("cni")?.texts("ips")?,
        call.config.object("runtimeConfig")?.texts("ips")?,
    ] {
        if !instead.is_empty() {
            ips = instead.iter().map(|text| alone(text)).collect::<Result<_, _>>()?;
        }
    }
    one_per_family(ips.iter().map(|ip| ip.address.addr().is_ipv4()), call.version)?;
    Ok(ips)
}

fn alone(text: &str) -> Result<IpConfig, Error> {
    let address: IpNet = text.parse().map_err(|_| {
        Error::config(format!("\"{}\" is not an address with a prefix length", text.escape_debug()))
    })?;
    Ok(IpConfig { interface: None, address, gateway: None })
}

impl Plugin for Fixed {
    fn name(&self) -> &'static str {
        "static"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        let ipam = call.config.object("ipam")?;
        let mut routes = Vec::new();
        for route in ipam.objects("routes")? {
            routes.push(read_route(route)?);
        }
        Ok(Outcome { ips: addresses(call)?, routes, dns: Dns::parse(ipam)?, ..Outcome::default() })
    }

    fn delete(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// A later plugin may have taken an address away; one that is still there must have its gateway.
    fn check(&self, call: &Call) -> Result<(), Error> {
        let previous = Outcome::previous(&call.config, call.version)?
            .ok_or_else(|| Error::config("CHECK needs \"prevResult\""))?;
        for wanted in addresses(call)?.iter().filter(|wanted| wanted.gateway.is_some()) {
            let address = wanted.address.addr();
            let found = previous.ips.iter().find(|ip| ip.address.addr() == address);
            if found.is_some_and(|found| found.gateway != wanted.gateway) {
                return Err(Error::mismatch(format!("{address} has another gateway than configured")));
            }
        }
        Ok(())
    }

    fn collect(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        addresses(call).map(drop)
    }
}
