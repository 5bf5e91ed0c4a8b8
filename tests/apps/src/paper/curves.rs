//! What transfers cost as they become longer, and by where they begin in a page.

use anyhow::Result;
use qnic::Port;
use qnic_abi::PAGE_SIZE;

use super::transfers::Pair;
use super::{Ends, Samples, STREAM};

/// Bytes of a transfer; that of 4,100 is the first that needs two pages.
const SIZES: [usize; 10] = [4, 16, 64, 256, 1024, 4096, 4100, 8192, 16_384, 65_536];

/// Where a write of a page begins in a page.
const OFFSETS: [usize; 9] = [0, 4, 512, 1024, 2048, 3072, 3584, 4000, 4092];

/// Transfers of a size in a round, one of each kind after the other, and streams.
const RUNS: u32 = 100;
const STREAMS: usize = 10;

const THERE: &str = "until it is there [ns]";

/// Kinds of transfers: whether by physical address, and whether it reads.
const KINDS: [(&str, usize, bool); 4] = [
    ("write", 0, false),
    ("writeP", 1, false),
    ("read", 0, true),
    ("readP", 1, true),
];

/// One round. By physical address transfers are as long as `contiguous` at most: as far as memory is
/// sure to be so.
///
/// # Errors
/// Those of the library, and what was not as it must be.
pub fn round(ends: &Ends, contiguous: usize, times: &mut dyn Samples) -> Result<()> {
    let most = SIZES[SIZES.len() - 1];
    let pairs = [
        Pair::by_virtual_address(ends, Port(7), most)?,
        Pair::by_physical_address(ends, Port(8), most.min(contiguous))?,
    ];
    let mut mark = 0;
    for size in SIZES {
        let kinds = || KINDS.into_iter().filter(|kind| size <= pairs[kind.1].bytes);
        for run in 0..=RUNS {
            for (kind, pair, reads) in kinds() {
                let pair = &pairs[pair];
                mark += 1;
                let time = pair.seen(reads, size, mark)?;
                // The first of each kind finds caches cold.
                if run > 0 {
                    times.at("transfers", kind, bytes(size), THERE, time);
                }
                pair.flush()?;
            }
        }
        for _ in 0..STREAMS {
            for (kind, pair, reads) in kinds() {
                let mb_s = size as f64 * 1e3 / pairs[pair].stream(reads, size)?;
                times.at("streams", kind, bytes(size), STREAM, mb_s);
            }
        }
    }
    by_offset(&pairs[0], times)
}

/// Writes of a page that lie across the border of two, by where they begin (NetVM figures 25 to 27).
fn by_offset(pair: &Pair, times: &mut dyn Samples) -> Result<()> {
    let mut mark = 0;
    for offset in OFFSETS {
        for run in 0..=STREAMS {
            mark += 1;
            let [one, each] = pair.write_page_at(offset, mark)?;
            if run > 0 {
                let mut add = |figure, value| {
                    let at = Some(("offset [bytes]", offset as f64));
                    times.at("offsets", "write 4096 B", at, figure, value);
                };
                add(THERE, one);
                add(STREAM, PAGE_SIZE as f64 * 1e3 / each);
            }
        }
    }
    Ok(())
}

/// So many bytes.
fn bytes(count: usize) -> Option<(&'static str, f64)> {
    Some(("bytes", count as f64))
}
