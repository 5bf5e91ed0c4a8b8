//! How often the NIC does not find a page because a full row has evicted
//! it: the table's own code against the formula of NetVM §4.3.1.1 (N4, N5).
//!
//! With *n* pages entered in *m* rows of *d* entries, a row that *i* pages hash to
//! has lost *i − d* of them, and the probability over rows is
//!
//! ```text
//!   P = Σ (i − d)/i · C(n,i) · (1/m)^i · (1 − 1/m)^(n−i)      i = d+1 … n
//! ```
//!
//! # The bound
//! The measured value is the mean of f(i) = max(0, i − d)/i over R rows. For a
//! uniform hash the counts of a table's rows are multinomial, thus negatively
//! associated, and f does not decrease: the variance of the mean is at most
//! Var f / R. It must be within five times the root of that (about one chance in
//! a million). Everything is seeded: the outcome is the same in every run, and
//! changes only with the hash or the table.

use std::collections::BTreeSet;

use qnic_abi::header::Geometry;
use qnic_abi::page_table::{PageAccess, Tag, ROW_ENTRIES};
use qnic_abi::{NodeId, VniId, PAGE_SHIFT};
use qnic_driver::shadow::{Inserted, Table};
use qnic_nic::page_table::{lock_page, unlock_page};
use qnic_nic::testing::Sram;

/// Rows of a table, and pages of its host.
const ROWS: u64 = 1 << 16;

/// Tables that are filled, each with other pages.
const TABLES: u64 = 16;

/// splitmix64: a bijection of 64-bit words that looks random.
fn scramble(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Pages anywhere in the address spaces of up to 128 processes.
fn scattered(table: u64, index: u64) -> Tag {
    let word = scramble(table << 32 | index);
    Tag::new(
        VniId((word >> 57) as u16),
        (word & 0x7_ffff_ffff) << PAGE_SHIFT,
    )
}

/// Four processes that each export one range, as most do.
fn ranges(table: u64, index: u64) -> Tag {
    let process = index % 4;
    let start = scramble(table << 8 | process) & 0x7_ffff_ffff;
    let page = start + index / 4;
    Tag::new(VniId((table * 4 + process) as u16), page << PAGE_SHIFT)
}

/// Probability that `i` of `n` pages hash to a row, for each `i` from 0 to 63.
fn binomial(n: u64) -> Vec<f64> {
    let p = 1.0 / ROWS as f64;
    let mut term = (1.0 - p).powf(n as f64);
    (0..64)
        .map(|i| {
            let this = term;
            term *= (n - i) as f64 / (i + 1) as f64 * p / (1.0 - p);
            this
        })
        .collect()
}

/// Share of a row's pages that it has lost.
fn lost(pages: usize) -> f64 {
    pages.saturating_sub(ROW_ENTRIES) as f64 / pages.max(1) as f64
}

/// Mean and variance of [`lost`]: the formula.
fn formula(n: u64) -> (f64, f64) {
    let weights = binomial(n);
    let moment = |power: i32| -> f64 {
        let terms = weights.iter().enumerate();
        terms.map(|(i, weight)| weight * lost(i).powi(power)).sum()
    };
    (moment(1), moment(2) - moment(1) * moment(1))
}

/// Mean over all rows of the share of pages that the NIC does not find, after `n`
/// pages were entered in each table.
fn measured(n: u64, page: fn(u64, u64) -> Tag) -> f64 {
    let geometry = Geometry::new(NodeId(0), ROWS, 1, 1).unwrap();
    assert_eq!(geometry.rows, ROWS);
    let mut sum = 0.0;
    for table_number in 0..TABLES {
        let sram = Sram::new(geometry.sram_bytes as usize);
        let mut table = Table::new(geometry, table_number);
        let mut pages = (0u64..).map(|index| page(table_number, index));
        let mut tags = BTreeSet::new();
        while tags.len() < n as usize {
            tags.extend(pages.next());
        }
        let mut evictions = 0;
        for (frame, tag) in tags.iter().enumerate() {
            match table.insert(&sram, *tag, frame as u32, (1, PageAccess::Write)) {
                Inserted::Done { evicted, .. } => evictions += usize::from(evicted.is_some()),
                other => panic!("{other:?}"),
            }
        }
        let mut rows = vec![(0usize, 0usize); ROWS as usize];
        for tag in &tags {
            let (pages, missing) = &mut rows[tag.row(ROWS) as usize];
            *pages += 1;
            match lock_page(&sram, &geometry, *tag, PageAccess::Write) {
                Some(page) => unlock_page(&sram, &geometry, page),
                None => *missing += 1,
            }
        }
        let missing: usize = rows.iter().map(|row| row.1).sum();
        assert_eq!(missing, evictions);
        let shares = rows.iter().map(|row| row.1 as f64 / row.0.max(1) as f64);
        sum += shares.sum::<f64>();
    }
    sum / (TABLES * ROWS) as f64
}

fn compare(n: u64, page: fn(u64, u64) -> Tag) {
    let (expected, variance) = formula(n);
    let bound = 5.0 * (variance / (TABLES * ROWS) as f64).sqrt();
    let found = measured(n, page);
    println!("{n} pages in {ROWS} rows: {found:.3e}, formula {expected:.3e} ± {bound:.1e}");
    assert!(
        (found - expected).abs() <= bound,
        "{found:e} is further than {bound:e} from {expected:e}"
    );
}

/// The source's results for m = M, d = 4: below 10⁻³ for a full table, below
/// 4 · 10⁻⁵ for one that is half full.
#[test]
fn the_formula_gives_the_figures_of_the_source() {
    assert!((8e-4..1e-3).contains(&formula(ROWS).0));
    assert!((3e-5..4e-5).contains(&formula(ROWS / 2).0));
}

#[test]
fn a_full_table_loses_as_many_pages_as_the_formula_says() {
    compare(ROWS, scattered);
    compare(ROWS, ranges);
}

#[test]
fn a_half_full_table_loses_as_many_pages_as_the_formula_says() {
    compare(ROWS / 2, scattered);
    compare(ROWS / 2, ranges);
}
