//! CSI's SnapshotMetadata service: a stream of ranges, made no faster than the caller takes it.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::apply::metadata::{Metadata, SnapshotBlocks};
use crate::call::{Call, Lanes};
use crate::error::{Error, Kind, Result};
use crate::extents::{Range, Ranges};
use crate::id::Id;
use csi::snapshot_metadata_server::SnapshotMetadata;
use csi::*;

/// Most ranges in one message.
const RANGES_MAX: usize = 4096;

/// The service.
#[derive(Debug)]
pub(crate) struct MetadataService {
    pub(crate) blocks: Arc<SnapshotBlocks>,
    pub(crate) lanes: Lanes,
}

/// A message of a stream.
trait Message: Send + 'static {
    fn new(capacity: i64, ranges: Vec<BlockMetadata>) -> Self;
}

impl Message for GetMetadataAllocatedResponse {
    fn new(volume_capacity_bytes: i64, block_metadata: Vec<BlockMetadata>) -> Self {
        let block_metadata_type = BlockMetadataType::VariableLength.into();
        Self { block_metadata_type, volume_capacity_bytes, block_metadata }
    }
}

impl Message for GetMetadataDeltaResponse {
    fn new(volume_capacity_bytes: i64, block_metadata: Vec<BlockMetadata>) -> Self {
        let block_metadata_type = BlockMetadataType::VariableLength.into();
        Self { block_metadata_type, volume_capacity_bytes, block_metadata }
    }
}

type Answers<T> = ReceiverStream<std::result::Result<T, Status>>;

/// How many ranges a message has when `asked` are.
fn most(asked: i32) -> Result<usize> {
    match usize::try_from(asked) {
        Ok(0) => Ok(RANGES_MAX),
        Ok(asked) => Ok(asked.min(RANGES_MAX)),
        Err(_) => Err(Error::new(Kind::Invalid, format!("max_results is negative: {asked}"))),
    }
}

/// Streams ranges, `most` in a message; a volume without any gets one message, which carries its size.
fn stream<T: Message>(lanes: Lanes, call: Call, metadata: Metadata, most: usize) -> Answers<T> {
    let (sender, receiver) = mpsc::channel(1);
    let capacity = signed(metadata.capacity);
    tokio::spawn(async move {
        let mut ranges = metadata.ranges;
        let mut begun = false;
        loop {
            // No thread is held while the caller takes its time.
            let read = lanes.read(move || {
                let batch: Result<Vec<Range>> = ranges.by_ref().take(most).collect();
                (ranges, batch)
            });
            let read: std::result::Result<(Ranges, _), _> = read.await;
            let batch = match read {
                Ok((rest, Ok(batch))) => {
                    ranges = rest;
                    batch
                }
                Ok((_, Err(error))) => {
                    call.span().in_scope(|| {
                        tracing::warn!(error = %error.chain(), "a snapshot's ranges cannot be read");
                    });
                    drop(sender.send(Err(error.into())).await);
                    return;
                }
                Err(_) => return,
            };
            let last = batch.len() < most;
            if !batch.is_empty() || !begun {
                let wire = |range: Range| BlockMetadata {
                    byte_offset: signed(range.offset),
                    size_bytes: signed(range.length),
                };
                let message = T::new(capacity, batch.into_iter().map(wire).collect());
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            begun = true;
            if last {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl SnapshotMetadata for MetadataService {
    type GetMetadataAllocatedStream = Answers<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Answers<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> std::result::Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        let id = Id::parse("snapshot_id", &request.snapshot_id)?;
        let most = most(request.max_results)?;
        let call = Call::of("GetMetadataAllocated", &id);
        let metadata = self
            .lanes
            .run(&self.blocks, call.clone(), move |blocks| blocks.allocated(&id, request.starting_offset))
            .await?;
        Ok(Response::new(stream(self.lanes.clone(), call, metadata, most)))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> std::result::Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        let base = Id::parse("base_snapshot_id", &request.base_snapshot_id)?;
        let id = Id::parse("target_snapshot_id", &request.target_snapshot_id)?;
        let most = most(request.max_results)?;
        let call = Call::of("GetMetadataDelta", &id);
        let metadata = self
            .lanes
            .run(&self.blocks, call.clone(), move |blocks| {
                blocks.changed(&base, &id, request.starting_offset)
            })
            .await?;
        Ok(Response::new(stream(self.lanes.clone(), call, metadata, most)))
    }
}
