//! What the nodes of a case that fails say, so that a failure on a machine that is
//! not at hand can be understood.

use std::time::Duration;

use qnic_cluster::{Cluster, GuestCommand, Node};

/// Longest time for one question: something hangs already.
const LIMIT: Duration = Duration::from_secs(20);
/// Lines of an answer that are shown, the last ones.
const LINES: usize = 80;

/// What is asked of each guest, one after the other: one may not be answered.
const QUESTIONS: &[(&str, &str)] = &[
    (
        "programs: where their threads wait",
        "for p in $(pidof qnic-app); do for t in /proc/$p/task/*; do \
         echo \"$t $(cut -d' ' -f3 $t/stat) $(cat $t/wchan)\"; cat $t/stack; done; done",
    ),
    (
        "blocked tasks",
        "dmesg -n 1; echo w > /proc/sysrq-trigger; dmesg | tail -n 60",
    ),
    (
        "memory, disks, interrupts",
        "grep -E 'MemFree|MemAvail|SwapFree|Dirty|Writeback:' /proc/meminfo; \
         cat /sys/block/*/inflight; grep virtio /proc/interrupts",
    ),
    ("driver and NIC", "qnic-app info"),
];

/// Asks all nodes and the device processes, and prints what they answer.
pub(crate) fn show(cluster: &Cluster) {
    for node in cluster.nodes() {
        let name = node.name();
        println!("    --- {name}: QEMU says {:?}", node.state());
        for (question, script) in QUESTIONS {
            let answer = ask(node, script);
            print(&format!("{name}, {question}"), &answer);
        }
        print(&format!("{name}, console"), &node.console_log());
    }
    let stats = match cluster.device_stats() {
        Ok(stats) => stats.to_string(),
        Err(error) => error.to_string(),
    };
    print("device, counters", &stats);
    print("device, log", &cluster.device_log());
}

fn ask(node: &Node, script: &str) -> String {
    match node.run(&GuestCommand::shell(script), LIMIT) {
        Ok(output) => {
            let texts = [output.stdout, output.stderr];
            String::from_utf8_lossy(&texts.concat()).into_owned()
        }
        Err(error) => format!("no answer: {error}"),
    }
}

fn print(what: &str, text: &str) {
    let lines: Vec<_> = text.lines().collect();
    println!("    --- {what}");
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        println!("    {line}");
    }
}
