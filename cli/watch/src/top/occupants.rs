//! What has happened between two snapshots to the processes and the peers of one NIC.

use std::cmp::Reverse;

use serde::Serialize;

use crate::top::snapshot::{Between, Entry, NodeSnapshot, Snapshot};

/// What is shown of a process. `None` is not known, as in [`crate::top::Row`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessRow {
    /// Its VNI.
    pub vni: u64,
    /// Its port.
    pub port: u64,
    /// What the kernel of its node calls it.
    pub pid: u64,
    /// The first name that it has registered.
    pub name: Option<String>,
    /// What its command queue does.
    pub queue: String,
    /// Commands per second.
    pub operations_per_second: Option<u64>,
    /// Payload bytes per second from its memory.
    pub sent_per_second: Option<u64>,
    /// Payload bytes per second into its memory.
    pub received_per_second: Option<u64>,
    /// Commands that run.
    pub depth: u64,
    /// Commands that the NIC has not read.
    pub posted: u64,
    /// Completions that it has not read.
    pub completions: u64,
    /// Notifications that it has not read.
    pub notifications: u64,
    /// Receives posted.
    pub receives: u64,
    /// Messages that wait for one.
    pub messages: u64,
    /// Page faults and requests of peers that wait.
    pub waiting: u64,
}

/// What is shown of a NIC that another one talks to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeerRow {
    /// Name of its node; its number, if it is none of those that were asked.
    pub peer: String,
    /// What the session with it is.
    pub session: String,
    /// Fragments that are under way to it, and how many it lets be.
    pub credits: (u64, u64),
    /// Fragments that it is let have under way.
    pub granted: u64,
    /// Frames of it that wait for memory.
    pub held: u64,
    /// Requests that it has not answered.
    pub requests: u64,
    /// What waits for room to it.
    pub waiting: u64,
    /// Frames per second that were sent to it again.
    pub resent_per_second: Option<u64>,
}

/// A row for each process, those with most commands per second first.
pub(crate) fn processes(
    before: Option<&NodeSnapshot>,
    now: &NodeSnapshot,
    elapsed: u128,
) -> Vec<ProcessRow> {
    let rows = now.processes.iter().map(|(vni, entry)| {
        let earlier = before.and_then(|before| before.processes.get(vni));
        // A VNI belongs to one process after the other.
        let earlier = earlier.filter(|earlier| is_same(earlier, entry));
        process(*vni, earlier, entry, elapsed)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| (Reverse(row.operations_per_second), row.vni));
    rows
}

fn is_same(one: &Entry, other: &Entry) -> bool {
    ["port", "pid"]
        .iter()
        .all(|name| one.number(name) == other.number(name))
}

fn process(vni: u64, before: Option<&Entry>, now: &Entry, elapsed: u128) -> ProcessRow {
    let between = Between {
        before: before.map(|before| &before.numbers),
        now: &now.numbers,
        elapsed,
    };
    let number = |name| now.number(name);
    ProcessRow {
        vni,
        port: number("port"),
        pid: number("pid"),
        name: now.words.get("name").cloned(),
        queue: now.word("queue"),
        operations_per_second: between.rate("commands"),
        sent_per_second: between.rate("bytes_sent"),
        received_per_second: between.rate("bytes_received"),
        depth: number("operations"),
        posted: number("posted"),
        completions: number("completions"),
        notifications: number("notifications"),
        receives: number("receives"),
        messages: number("messages"),
        waiting: number("faults").saturating_add(number("requests")),
    }
}

/// A row for each peer, by number.
pub(crate) fn peers(
    before: Option<&NodeSnapshot>,
    now: &NodeSnapshot,
    all: &Snapshot,
    elapsed: u128,
) -> Vec<PeerRow> {
    let named = |number: u64| {
        let mut nodes = all.nodes.iter();
        let found = nodes.find(|(_, node)| node.number == number && node.network == now.network);
        found.map_or_else(|| format!("node {number}"), |(name, _)| name.clone())
    };
    let rows = now.peers.iter().map(|(number, entry)| {
        let earlier = before.and_then(|before| before.peers.get(number));
        let between = Between {
            before: earlier.map(|earlier| &earlier.numbers),
            now: &entry.numbers,
            elapsed,
        };
        PeerRow {
            peer: named(*number),
            session: entry.word("session"),
            credits: (entry.number("under_way"), entry.number("window")),
            granted: entry.number("granted"),
            held: entry.number("held"),
            requests: entry.number("requests"),
            waiting: entry.number("waiting"),
            resent_per_second: between.rate("resent"),
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{json, Value};

    use super::*;
    use crate::top::model::rows;
    use crate::top::Row;

    fn snapshot(start: Instant, seconds: u64, processes: &Value, peers: &Value) -> Snapshot {
        let stats = json!({ "nics": [
            { "name": "a", "node": 0, "state": "running", "processes": processes, "peers": peers },
            { "name": "b", "node": 1, "state": "running" },
        ]});
        Snapshot::parse(&stats, start + Duration::from_secs(seconds))
    }

    fn process(vni: u64, port: u64, commands: u64) -> Value {
        json!({
            "vni": vni, "port": port, "pid": 40, "name": null, "queue": "active",
            "commands": commands, "bytes_sent": commands * 8, "bytes_received": 0, "operations": 2,
            "posted": 3, "completions": 4, "notifications": 5, "faults": 6, "requests": 7,
            "receives": 8, "messages": 9,
        })
    }

    fn of_a(before: &Snapshot, after: &Snapshot) -> Row {
        rows(Some(before), after).remove(0)
    }

    #[test]
    fn processes_have_rates_and_depths_and_the_busiest_comes_first() {
        let start = Instant::now();
        let none = json!([]);
        let before = json!([process(1, 7, 100), process(2, 8, 100), process(3, 9, 100)]);
        let before = snapshot(start, 0, &before, &none);
        let after = json!([process(1, 7, 200), process(2, 8, 700), process(3, 10, 900)]);
        let row = of_a(&before, &snapshot(start, 2, &after, &none));
        let rates: Vec<_> = row
            .by_process
            .iter()
            .map(|row| (row.vni, row.operations_per_second, row.sent_per_second))
            .collect();
        let expected = [
            (2, Some(300), Some(2_400)),
            (1, Some(50), Some(400)),
            // Another process has the VNI now.
            (3, None, None),
        ];
        assert_eq!(rates, expected);
        let one = &row.by_process[0];
        let depths = [one.depth, one.posted, one.completions, one.notifications];
        assert_eq!(depths, [2, 3, 4, 5]);
        assert_eq!((one.waiting, one.receives, one.messages), (13, 8, 9));
        assert_eq!((&one.queue[..], &one.name, one.pid), ("active", &None, 40));
    }

    #[test]
    fn peers_have_the_names_of_their_nodes_as_far_as_they_are_known() {
        let start = Instant::now();
        let peer = |node: u64, resent: u64| {
            json!({
                "node": node, "session": "open", "window": 256, "under_way": 12, "granted": 64,
                "held": 1, "requests": 2, "waiting": 3, "resent": resent,
            })
        };
        let none = json!([]);
        let before = snapshot(start, 0, &none, &json!([peer(1, 10)]));
        let after = snapshot(start, 1, &none, &json!([peer(1, 60), peer(5, 9)]));
        let row = of_a(&before, &after);
        let [known, other] = &row.by_peer[..] else {
            panic!("{row:?}");
        };
        assert_eq!((&known.peer[..], known.resent_per_second), ("b", Some(50)));
        assert_eq!((known.credits, known.granted), ((12, 256), 64));
        assert_eq!((known.held, known.requests, known.waiting), (1, 2, 3));
        assert_eq!((&other.peer[..], other.resent_per_second), ("node 5", None));
    }

    #[test]
    fn entries_of_another_shape_are_left_out() {
        let start = Instant::now();
        let odd = json!([7, {"vni": "x"}, {"port": 3}, {"vni": 4, "queue": 9}]);
        let after = snapshot(start, 1, &odd, &odd);
        let row = of_a(&snapshot(start, 0, &odd, &json!(null)), &after);
        assert_eq!((row.by_process.len(), row.by_peer.len()), (1, 0));
    }
}
