//! A Send, or a receive of one message, from its post to its end. It stands at one place: what is as long costs a copy
//! each time that it moves.

use qnic::message::{Completion, Request, RequestId};

use super::{reason, Engine, Iovs, Operations, Process, Report, Running};
use crate::arena::Bounce;
use crate::cq::Event;

/// A Send, or a receive of one message.
pub(super) struct Operation<'a> {
    // In front: dropped before the bounce memory is used again.
    pub(super) request: Request<'a>,
    pub(super) bounce: Option<Bounce>,
    /// Where a receive puts its bytes.
    pub(super) room: Option<Iovs>,
    pub(super) report: Report,
    /// Its number, of all that were posted.
    pub(super) number: u64,
    /// The program has taken it back; its end has not come.
    pub(super) cancelled: bool,
    /// The answer that ends a Send.
    pub(super) answer: Option<RequestId>,
}

/// What is left of an operation that has ended.
struct Finished {
    bounce: Option<Bounce>,
    room: Option<Iovs>,
    report: Report,
    answer: Option<RequestId>,
}

impl Operation<'_> {
    /// Leaves nothing but its request, and its number.
    fn finish(&mut self) -> Finished {
        Finished {
            bounce: self.bounce.take(),
            room: self.room.take(),
            report: std::mem::replace(&mut self.report, Report::silent()),
            answer: self.answer,
        }
    }
}

impl Operations<'_> {
    /// Drops an operation that has ended, where it stands.
    fn drop_operation(&mut self, id: RequestId, is_receive: bool) {
        match is_receive {
            true => self.receives -= 1,
            false => self.sends -= 1,
        }
        self.running.clear(id);
    }
}

impl Engine {
    /// Notes a Send or a receive that was posted. In line, so that it is built where it stands.
    #[inline(always)]
    pub(super) fn begin_operation<'a>(
        &self,
        operations: &mut Operations<'a>,
        operation: Operation<'a>,
    ) {
        match operation.room {
            None => operations.sends += 1,
            Some(_) => operations.receives += 1,
        }
        let id = operation.request.id();
        let place = operations.running.place(id);
        *place = Some((id, Running::Operation(operation)));
        self.want_help(operations);
    }

    /// Looks at a Send or a receive, and tells what has become of it if it has ended. Returns false if the request is of
    /// something else.
    pub(super) fn look_at_operation<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        id: RequestId,
    ) -> bool {
        let Some(Running::Operation(operation)) = operations.running.get_mut(id) else {
            return false;
        };
        if let Some(end) = operation.request.test().transpose() {
            let finished = operation.finish();
            operations.drop_operation(id, finished.room.is_some());
            self.finish(own, operations, finished, end);
        }
        true
    }

    fn finish<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        finished: Finished,
        end: qnic::Result<Completion>,
    ) {
        let Finished {
            bounce,
            room,
            report,
            answer,
        } = finished;
        match (room, end) {
            (Some(room), Ok(end)) => {
                self.received(own, operations, (bounce.as_ref(), room), report, &end);
            }
            (room, Err(error)) => {
                if let Some(Running::Awaited(awaited)) = answer.and_then(|it| operations.remove(it))
                {
                    operations.answered(awaited, Some(reason(&error)));
                }
                report.fail(room.as_ref(), reason(&error));
            }
            (None, Ok(_)) => report.tell(Event::of(report.context, report.flags)),
        }
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
    }
}
