//! What a domain has, for the objects on it: the NIC, registered memory and its service.

use std::sync::{Arc, Mutex, PoisonError};

use qnic::Nic;

use crate::errno::Result;
use crate::regions::Regions;
use crate::service::Running;

/// The NIC and the memory of a domain.
#[derive(Debug)]
pub(crate) struct Base {
    nic: Arc<Nic>,
    regions: Arc<Regions>,
    /// What serves the regions, once an endpoint needs it.
    service: Mutex<Option<Running>>,
}

impl Base {
    pub(crate) fn new(nic: Arc<Nic>, regions: Regions) -> Self {
        Base {
            nic,
            regions: Arc::new(regions),
            service: Mutex::new(None),
        }
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The memory that is registered.
    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Gives the service of the memory to `take`, which starts when it is first needed.
    ///
    /// # Errors
    /// Those of [`Running::start`]
    pub(crate) fn with_service<R>(&self, take: impl FnOnce(&Running) -> R) -> Result<R> {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match service.take() {
            Some(running) => running,
            None => Running::start(&self.nic, self.regions.clone())?,
        };
        Ok(take(service.insert(running)))
    }
}
