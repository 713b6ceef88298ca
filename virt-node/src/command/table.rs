//! Rows of text in columns.

/// Rows below a head, each column as wide as its widest text.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let width =
        |column: usize| all().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    all().map(line).collect()
}

/// A time span as people read it: `7s`, `12m`, `5h`, `3d`.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_texts() {
        let rows = vec![vec!["a".to_owned(), "Running".to_owned()], vec!["longer".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "STATUS"], &rows), "NAME     STATUS\na        Running\nlonger\n");
        assert_eq!([age(7), age(720), age(18_000), age(259_200)], ["7s", "12m", "5h", "3d"]);
    }
}
