//! The service Pools: the state of each pool, for the agent of the node, which writes events of it. It is read from the
//! driver's memory, a pool's own numbers and the loop devices; no volume is looked into.
//!
//! Not here: metrics, which have more figures, and what deserves an event.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::call::{Call, run};
use crate::config::Enforce;
use crate::id::Id;
use crate::metrics;
use crate::pools::Pools;
use crate::record::Shape;
use csi::pools::{ListRequest, ListResponse, Pool, pools_server};

/// The service.
#[derive(Debug)]
pub(crate) struct StatesService {
    pub(crate) pools: Arc<Pools>,
}

#[tonic::async_trait]
impl pools_server::Pools for StatesService {
    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let pools = run(&self.pools, Call::named("ListPools"), |pools| Ok(states(pools))).await?;
        Ok(Response::new(ListResponse { pools }))
    }
}

/// The state of each pool.
fn states(of: &Pools) -> Vec<Pool> {
    let attached = of.devices.every();
    let states = of.all.iter().map(|pool| {
        let name = pool.config.name.clone();
        let Ok(open) = pool.open() else { return Pool { name, ..Pool::default() } };
        let room = open.room_by_accounts();
        let files: Vec<(Id, Shape)> = {
            let book = open.known.book();
            let files = book.volumes.iter().filter(|(_, line)| line.shape != Shape::Folder);
            files.map(|(id, line)| (id.clone(), line.shape)).collect()
        };
        let buffered = files.into_iter().filter(|(id, shape)| {
            let file = metrics::file(&open, id, *shape).unwrap_or_default();
            file.and_then(|file| attached.get(&file)).is_some_and(|all| all.iter().any(|one| !one.direct))
        });
        Pool {
            name,
            ready: true,
            read_only: open.read_only(),
            enforced: matches!(open.enforce(), Some(Enforce::Quota | Enforce::Loop)),
            size_bytes: room.size,
            free_bytes: room.free,
            reserved_bytes: room.promised,
            limit_bytes: room.limit(),
            buffered_volumes: buffered.map(|(id, _)| id.as_str().to_owned()).collect(),
        }
    });
    states.collect()
}
