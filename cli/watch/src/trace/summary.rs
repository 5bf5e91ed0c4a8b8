//! What is in a trace, in short: counts, and the slowest operations with their stages.

use std::collections::BTreeMap;
use std::path::Path;

use qnic_abi::Status;
use serde::Serialize;

use crate::trace::collect::Collected;
use crate::trace::names::{self, Nodes};
use crate::trace::operations::Operations;

/// How many of the slowest operations are named.
const SLOWEST: usize = 10;

/// What is in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// From the first event to the last.
    pub nanoseconds: u64,
    /// Events that are in it.
    pub events: usize,
    /// Events that NICs had no room for, by their nodes.
    pub lost: BTreeMap<String, u64>,
    /// Events that were beyond the limit.
    pub beyond_limit: u64,
    /// Operations whose beginning was seen.
    pub operations: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// Those of them whose end was not seen.
    pub under_way: usize,
    /// Frames that were sent again.
    pub sent_again: usize,
    /// Arrows from node to node.
    pub arrows: u64,
    /// The slowest of those that ended, the slowest first.
    pub slowest: Vec<Slow>,
}

/// A slow operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Slow {
    /// What it is called.
    pub name: String,
    /// Node whose operation it is.
    pub node: String,
    /// When it began, from the first event on.
    pub at: u64,
    /// From its fetch to when its process could see its end.
    pub nanoseconds: u64,
    /// Its stages, in their order.
    pub stages: Vec<(&'static str, u64)>,
}

impl Summary {
    /// Counts.
    pub fn of(collected: &Collected, operations: &Operations, arrows: u64) -> Self {
        let nodes = Nodes::new(&collected.nodes);
        let own = || {
            let all = operations.all.iter();
            all.filter(|operation| operation.fetched.is_some())
        };
        let calls = || operations.all.iter().flat_map(|operation| &operation.calls);
        let ends = own().map(|it| (it.ended, it.status));
        let ends: Vec<_> = ends
            .chain(calls().map(|it| (it.ended, it.status)))
            .collect();
        let failed = ends
            .iter()
            .filter(|(ended, status)| ended.is_some() && *status != Status::Ok.code());
        let marks = operations.all.iter().flat_map(|it| &it.marks);
        let lost = collected.lost.iter();
        let commands = own().filter_map(|operation| {
            let (fetched, stages) = (operation.fetched?, operation.stages()?);
            let end = (&operation.name, operation.requester);
            Some((operation.duration()?, end, fetched, stages))
        });
        let shared = operations.all.iter();
        let shared = shared.flat_map(|it| it.calls.iter().map(move |call| (it, call)));
        let shared = shared.filter_map(|(operation, call)| {
            let time = call.ended?.saturating_sub(call.fetched);
            let stages = operation.call_stages(call);
            Some((time, (&call.name, call.at), call.fetched, stages))
        });
        let mut slowest: Vec<_> = commands.chain(shared).collect();
        slowest.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
        slowest.truncate(SLOWEST);
        let slowest = slowest
            .into_iter()
            .map(|(nanoseconds, (name, node), from, stages)| Slow {
                name: name.clone(),
                node: nodes.name(node),
                at: from.saturating_sub(operations.begin),
                nanoseconds,
                stages: stages
                    .into_iter()
                    .map(|(name, from, to)| (name, to - from))
                    .collect(),
            });
        Summary {
            nanoseconds: operations.end - operations.begin,
            events: collected.events.len(),
            lost: lost
                .map(|(node, lost)| (nodes.name(*node), *lost))
                .collect(),
            beyond_limit: collected.beyond,
            operations: ends.len(),
            failed: failed.count(),
            under_way: ends.iter().filter(|(ended, _)| ended.is_none()).count(),
            sent_again: marks
                .filter(|mark| mark.what == qnic_nic::trace::What::Resent)
                .count(),
            arrows,
            slowest: slowest.collect(),
        }
    }

    /// As text.
    pub fn text(&self, file: &Path) -> String {
        let mut text = format!(
            "{} operations in {}: {} failed, {} under way, {} frames sent again\n",
            self.operations,
            names::time(self.nanoseconds),
            self.failed,
            self.under_way,
            self.sent_again,
        );
        for (node, lost) in &self.lost {
            text += &format!(
                "{lost} events of {node} are lost, its buffer was full: take a larger --sample\n"
            );
        }
        if self.beyond_limit > 0 {
            text += &format!(
                "{} events are left out, --limit was reached\n",
                self.beyond_limit
            );
        }
        if !self.slowest.is_empty() {
            text += "The slowest:\n";
        }
        for slow in &self.slowest {
            let stages = slow.stages.iter();
            let stages: Vec<_> = stages
                .map(|(name, time)| format!("{name} {}", names::time(*time)))
                .collect();
            text += &format!(
                "  {:>9}  {}: {}, after {}; {}\n",
                names::time(slow.nanoseconds),
                slow.node,
                slow.name,
                names::time(slow.at),
                stages.join(", "),
            );
        }
        let file = file.display();
        text + &format!(
            "{file} has {} events: https://ui.perfetto.dev opens it\n",
            self.events
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::operations::tests::{collected, write};

    #[test]
    fn the_slowest_come_first_with_their_stages() {
        let mut events = write();
        for number in 1..15u64 {
            events.extend(write().into_iter().map(|event| qnic_nic::trace::Event {
                operation: number << 24,
                // The later, the longer.
                time: event.time + if event.time > 200 { number } else { 0 },
                ..event
            }));
        }
        // One that has only begun.
        events.push(qnic_nic::trace::Event {
            operation: 99 << 24,
            ..write()[0]
        });
        events.sort_by_key(|event| event.time);
        let mut collected = collected(events);
        collected.lost.insert(1, 6);
        let operations = Operations::of(&collected);
        let summary = Summary::of(&collected, &operations, 3);
        let counts = (summary.operations, summary.failed, summary.under_way);
        assert_eq!(counts, (16, 0, 1));
        assert_eq!(summary.slowest.len(), SLOWEST);
        let times: Vec<_> = summary.slowest.iter().map(|it| it.nanoseconds).collect();
        assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
        assert_eq!(summary.slowest[0].stages[0], ("queued", 10));
        let text = summary.text(Path::new("t.json"));
        assert!(text.starts_with("16 operations in "), "{text}");
        assert!(text.contains("6 events of b are lost"), "{text}");
        assert!(text.contains("a: write 8 B to b, after 0 ns; queued 10 ns, sending 1 ns"));
        assert!(text.contains("t.json has "), "{text}");
    }
}
