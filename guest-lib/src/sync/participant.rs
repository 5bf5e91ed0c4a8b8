//! A process that uses objects.

use std::sync::Arc;

use qnic_abi::{Access, Status};

use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::sync::area::{area_name, Area};
use crate::sync::entry::{SLOTS, SLOT_BYTES};

/// Random names that are tried for an area.
const ATTEMPTS: u32 = 8;

/// A process that uses objects; made once from an endpoint, then cloned. All of its
/// threads can use it at the same time.
///
/// It keeps its endpoint registered. The drop of its last clone, and of all objects made
/// from it, waits until its last writes to other participants have ended.
#[derive(Debug, Clone)]
pub struct Participant(pub(crate) Arc<Area>);

impl Participant {
    /// Makes the process of an endpoint a participant.
    ///
    /// # Errors
    /// Those of [`Endpoint::export`].
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let endpoint = endpoint.share();
        let buffer = endpoint.allocate(usize::from(SLOTS) * SLOT_BYTES as usize)?;
        let mut attempt = 0;
        let (incarnation, segment) = loop {
            attempt += 1;
            let incarnation = endpoint.core().provider.random() as u16;
            let name = area_name(incarnation);
            match endpoint.export(name, &buffer, Access::READ | Access::WRITE) {
                Ok(segment) => break (incarnation, segment),
                Err(error) if attempt < ATTEMPTS && is_taken(&error) => {}
                Err(error) => return Err(error),
            }
        };
        let area = Area::new(endpoint, buffer, segment, incarnation);
        Ok(Participant(Arc::new(area)))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }
}

fn is_taken(error: &Error) -> bool {
    error.status() == Some(Status::NameExists)
}
