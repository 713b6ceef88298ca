//! VirtualMachinePools: as many VMs of a template as asked for, named by their number. VMs follow the template; running
//! ones are restarted for it, unless the pool's update strategy forbids it.

mod apply;
mod plan;
mod render;

pub(super) use apply::reconcile;
