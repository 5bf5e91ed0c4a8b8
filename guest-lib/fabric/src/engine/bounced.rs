//! Sends of bytes that are copied into bounce memory.

use qnic::message::{Destination, Request};

use super::{Iovs, Process};
use crate::arena::Bounce;
use crate::errno::Result;

/// A Send that was posted, and the bounce memory with its bytes.
pub(super) type Sent<'a> = (Request<'a>, Option<Bounce>);

/// Posts a message with a part of `from`, by bounce memory.
pub(super) fn post_part<'a>(
    own: &'a Process,
    destination: &Destination,
    from: &Iovs,
    part: std::ops::Range<usize>,
) -> Result<Sent<'a>> {
    let bounce = own.arena.take(&own.endpoint, part.len())?;
    let gathered = from.gather(part.clone(), |offset, bytes| {
        own.arena.write(&bounce, offset, bytes)
    });
    let posted = gathered.and_then(|()| {
        let part = own.arena.part(&bounce, part.len())?;
        Ok(own.endpoint.send(destination, part).post()?)
    });
    match posted {
        Ok(request) => Ok((request, Some(bounce))),
        Err(error) => {
            own.arena.give_back(bounce);
            Err(error)
        }
    }
}
