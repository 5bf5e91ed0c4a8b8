//! Shared pools of this process (S1): the range is a piece of the arena.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use qnic_abi::pool::{OpenPools, PoolInfo, PoolKick, PoolWait};
use qnic_abi::uapi;
use qnic_driver::{Driver, Pools};
use qnic_shared::region::{Own, SharedRegion};

use crate::calls::pass_on;
use crate::error::HostError;
use crate::platform::HostPlatform;

/// Pools of this process: the calls of [`qnic_abi::pool`]. Dropping it closes them.
pub struct HostPools {
    range: SharedRegion,
    pools: Own<Pools<HostPlatform>>,
    /// The node, which lives until the NIC has nothing of the pools any more.
    _node: Arc<dyn Any + Send + Sync>,
}

impl HostPools {
    pub(crate) fn open(
        node: Arc<dyn Any + Send + Sync>,
        driver: &Arc<Driver<HostPlatform>>,
        call: &mut OpenPools,
    ) -> Result<Option<Self>, HostError> {
        let Some(pools) = driver.open_pools(call)? else {
            return Ok(None);
        };
        let first = pools.page(0).map(|page| page.region);
        let range = first.and_then(|first| driver.platform().arena.extend(&first, pools.bytes()));
        Ok(range.map(|range| HostPools {
            range,
            pools: Own::new(pools),
            _node: node,
        }))
    }

    /// The range.
    pub fn range(&self) -> &SharedRegion {
        &self.range
    }

    pass_on! { self => self.pools.get();
        /// Makes the driver look at the queues, as `pool::POOL_KICK`.
        kick(PoolKick);
        /// Blocks until an event is there, as `pool::POOL_WAIT`.
        wait(PoolWait);
        /// The driver's counters, as `pool::POOL_INFO`.
        info(PoolInfo);
        /// Queries the route to a node, as `uapi::PATH`.
        path(uapi::Path);
    }

    /// A descriptor that is readable when the character device of a guest would be, until
    /// [`HostPools::clear_event`].
    ///
    /// # Errors
    /// [`HostError::Descriptor`], [`HostError::Forked`]
    pub fn event(&self) -> Result<BorrowedFd<'_>, HostError> {
        let pools = self.pools.get()?;
        pools.waiters().event(|| pools.is_readable())
    }

    /// Makes the descriptor unreadable; the process looks at its queues afterwards.
    pub fn clear_event(&self) {
        if let Ok(pools) = self.pools.get() {
            pools.waiters().clear_event();
        }
    }
}

impl std::fmt::Debug for HostPools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostPools")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}
