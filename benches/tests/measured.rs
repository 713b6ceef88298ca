//! Rows of the bench program with few attachments, calls and frames: they are measured, whatever the figures are.

use std::path::PathBuf;

use benches::cni::{Bench, Counts};

#[test]
fn rows_about_checked_attachments_are_measured() {
    let given = |variable| {
        let value = std::env::var_os(variable);
        PathBuf::from(value.unwrap_or_else(|| panic!("{variable} is not set: make test sets it")))
    };
    let counts =
        Counts { times: 8, many: 12, stale: 12, forwarding: 12, rounds: 3, datagrams: 2000, bytes: 4 << 20 };
    let bench = Bench::new(&given("FERROVIRT_CNI"), &given("FERROVIRT_PEERS"), counts).unwrap();
    for (row, lines) in [("cni: macspoofchk at 900", 1), ("cni: frames at 400", 4)] {
        let compared = bench.row(row).unwrap();
        compared.iter().for_each(|one| print!("{}", one.line()));
        assert_eq!(compared.len(), lines, "{row}");
        assert!(compared.iter().all(|one| one.ours.least > 0.0 && one.other.least > 0.0), "{row}");
    }
}
