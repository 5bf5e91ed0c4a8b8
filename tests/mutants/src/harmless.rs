//! Mutants that pass, with the reason: they are harmless, or the models do not go so far.

use crate::mutant::Mutant;
use crate::suite::Source;

/// A mutant that may pass.
struct Known {
    /// Name of the file.
    file: &'static str,
    function: &'static str,
    /// How its description starts.
    what: &'static str,
    reason: &'static str,
}

const fn known(
    file: &'static str,
    function: &'static str,
    what: &'static str,
    reason: &'static str,
) -> Known {
    Known {
        file,
        function,
        what,
        reason,
    }
}

const KNOWN: &[Known] = &[
    known(
        "shadow.rs",
        "insert",
        "swap `self.clean(sram, frame);` and `sram.store_u64(self.geometry.key_word(",
        "harmless: dirty bit and key may come in any order: the reverse mapping releases both",
    ),
    known(
        "ring.rs",
        "write",
        "swap `self.memory.write_words(self.place(index), first);`",
        "harmless: the tail releases both parts",
    ),
    known(
        "ring.rs",
        "push",
        "swap `self.records.store(self.tail, bytes.len() as u64);` and `self.records.write",
        "harmless: the tail releases length and bytes",
    ),
    known(
        "ring.rs",
        "push",
        "remove `self.publish();`",
        "harmless: the consumer is told later, by the flush",
    ),
    known(
        "ring.rs",
        "flush",
        "remove `memory.store_u64(ASLEEP, 0,",
        "harmless: the eventfd is written once more",
    ),
    known(
        "ring.rs",
        "wake",
        "remove `memory.store_u64(ASLEEP, 0,",
        "harmless: the eventfd is written once more",
    ),
    known(
        "inbox.rs",
        "take",
        "weaken Release in `window.store_u64(NOTIFICATION_HEAD",
        "not modelled: no entry is overwritten, the queue is longer than a model",
    ),
    known(
        "notification.rs",
        "head",
        "weaken Acquire in",
        "not modelled: no entry is overwritten, the queue is longer than a model",
    ),
    known(
        "host_area.rs",
        "record_error",
        "swap `self.store(memory, offset, command);` and `self.store(memory, offset + 8",
        "harmless: the count releases both",
    ),
    known(
        "host_area.rs",
        "publish_completions",
        "swap `if self.writes != writes",
        "harmless: the counters are of different commands",
    ),
    known(
        "host_area.rs",
        "publish_completions",
        "remove `self.store(memory, host_area::READS_DONE, reads);`",
        "not modelled: the models read nothing",
    ),
    known(
        "fetch.rs",
        "fetch_one",
        "weaken Release in `sram.store_u64(queue.window + AWAKE, 1",
        "harmless: the process rings or does not, and reads nothing behind it",
    ),
    known(
        "fetch.rs",
        "fetch_one",
        "weaken Release in `sram.store_u64(slot, 0",
        "harmless: the head is released later, and the slot is used again only behind that",
    ),
    known(
        "fetch.rs",
        "offer_wake",
        "weaken Acquire in `host.sram().load_u64(word",
        "harmless: a fence is in front of it, and nothing is read behind it",
    ),
];

/// Why a mutant may pass, if it may.
pub(crate) fn reason(source: &Source, mutant: &Mutant) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| {
        known.file == source.name()
            && known.function == mutant.function
            && mutant.what.starts_with(known.what)
    });
    known.map(|known| known.reason)
}
