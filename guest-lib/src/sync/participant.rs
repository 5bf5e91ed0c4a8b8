//! A process that uses objects.

use std::sync::Arc;

use qnic_abi::Access;

use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::memory::{ExportOptions, Importers, Secret};
use crate::sync::area::Areas;

/// A process that uses objects; made once from an endpoint, then cloned. All of its
/// threads can use it at the same time.
///
/// It keeps its endpoint registered. The drop of its last clone, and of all objects made
/// from it, waits until its last writes to other participants have ended.
#[derive(Debug, Clone)]
pub struct Participant(pub(crate) Arc<Areas>);

impl Participant {
    /// Makes the process of an endpoint a participant that every process may wake.
    ///
    /// # Errors
    /// Those of [`Endpoint::export`].
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        Self::among(endpoint, Importers::anyone())
    }

    /// Makes the process of an endpoint a participant among others that trust each other
    /// ([which processes may wake](crate::sync#which-processes-may-wake)). All of them are made with the same
    /// secret, if with one, and with lists that name all of them, if with lists.
    ///
    /// # Errors
    /// Those of [`Endpoint::export`].
    pub fn among(endpoint: &Endpoint, others: impl Into<Importers>) -> Result<Self> {
        let areas = Areas::new(endpoint.share(), others.into())?;
        Ok(Participant(Arc::new(areas)))
    }

    /// Options that admit the other participants to a segment.
    pub(crate) fn grants(&self, access: Access) -> ExportOptions {
        ExportOptions::new(access).importers(self.0.others.clone())
    }

    /// What participants present to each other.
    pub(crate) fn secret(&self) -> Option<Secret> {
        self.0.others.secret()
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }
}
