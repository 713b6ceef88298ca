//! Small CDs for guests: ISO 9660 (ECMA-119) with names by Rock Ridge (RRIP 1.12) for Linux and by Joliet for Windows; the
//! same bytes for the same files.
//!
//! ```text
//! 16 volume │ 17 its Joliet twin │ 18 end │ path tables ×4 │ folders │ Joliet's folders │ files, shared by both
//! ```
//!
//! Sectors of 2048 bytes; numbers are written in both orders of bytes. Names and sizes are those that
//! [`api::launch::Launch::read`] lets through: at most 100 letters of ASCII a name, eight folders deep.
//!
//! Not here: El Torito, more than one extent a file, dates.

use std::collections::BTreeMap;

use api::launch::Medium;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

const SECTOR: usize = 2048;
/// Sectors before the first of ours.
const SYSTEM_AREA: usize = 16;
/// Most bytes of a CD: what a launch document can hold, with room.
const IMAGE_MAX: usize = 64 << 20;
/// Mode of files and folders, for `PX`.
const FILE_MODE: u32 = 0o100_444;
const FOLDER_MODE: u32 = 0o040_555;
/// The escape sequence of the Joliet volume's character set (UCS-2, level 3).
const JOLIET: &[u8] = b"%/E";

/// Why there is no CD.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IsoError {
    /// A file's content is not base64.
    #[error("medium {medium}: the content of {path} is not base64")]
    Content {
        /// The medium.
        medium: String,
        /// The file.
        path: String,
    },
    /// A file where a folder is wanted.
    #[error("medium {medium}: {path} is given both as a file and as a folder")]
    Clash {
        /// The medium.
        medium: String,
        /// The path.
        path: String,
    },
    /// More than a CD of ours holds.
    #[error("medium {0}: the content exceeds 64 MiB, or a path in it is too long")]
    TooLarge(String),
}

/// Which of the two trees a record belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    RockRidge,
    Joliet,
}

/// A folder: what is in it by name. Files are numbers in a list, folders numbers in another.
#[derive(Default)]
struct Folder {
    parent: usize,
    name: String,
    files: BTreeMap<String, usize>,
    folders: BTreeMap<String, usize>,
}

/// Where things are, in sectors.
struct Places {
    folders: Vec<(usize, usize)>,
    files: Vec<(usize, usize)>,
}

/// The image of a medium.
///
/// # Errors
/// See [`IsoError`].
pub fn iso(medium: &Medium) -> Result<Vec<u8>, IsoError> {
    let (folders, contents) = tree(medium)?;
    image(&medium.label, &folders, &contents).ok_or_else(|| IsoError::TooLarge(medium.name.clone()))
}

/// The tree of a medium's files, its root first and parents before children, and the files' contents.
fn tree(medium: &Medium) -> Result<(Vec<Folder>, Vec<Vec<u8>>), IsoError> {
    let mut folders = vec![Folder::default()];
    let mut contents = Vec::new();
    for file in &medium.files {
        let clash = || IsoError::Clash { medium: medium.name.clone(), path: file.path.clone() };
        let content = STANDARD
            .decode(&file.content.0)
            .map_err(|_| IsoError::Content { medium: medium.name.clone(), path: file.path.clone() })?;
        let (above, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let mut place = 0;
        for step in above.split('/').filter(|step| !step.is_empty()) {
            if folders[place].files.contains_key(step) {
                return Err(clash());
            }
            place = match folders[place].folders.get(step) {
                Some(next) => *next,
                None => {
                    let next = folders.len();
                    folders.push(Folder { parent: place, name: step.to_owned(), ..Folder::default() });
                    folders[place].folders.insert(step.to_owned(), next);
                    next
                }
            };
        }
        let folder = &mut folders[place];
        if folder.folders.contains_key(name) || folder.files.insert(name.to_owned(), contents.len()).is_some()
        {
            return Err(clash());
        }
        contents.push(content);
    }
    Ok((by_level(folders), contents))
}

/// Folders in the order that path tables want: by level, then by parent.
fn by_level(folders: Vec<Folder>) -> Vec<Folder> {
    let mut order = vec![0];
    let mut next = 0;
    while let Some(&place) = order.get(next) {
        order.extend(folders[place].folders.values().copied());
        next += 1;
    }
    let mut numbers = vec![0; folders.len()];
    order.iter().enumerate().for_each(|(number, place)| numbers[*place] = number);
    let mut sorted: Vec<Folder> = folders
        .into_iter()
        .map(|folder| Folder {
            parent: numbers[folder.parent],
            folders: folder.folders.iter().map(|(name, place)| (name.clone(), numbers[*place])).collect(),
            ..folder
        })
        .collect();
    // The n-th of the old order becomes the n-th of the new one.
    let mut places: Vec<(usize, Folder)> = numbers.into_iter().zip(sorted.drain(..)).collect();
    places.sort_by_key(|(number, _)| *number);
    places.into_iter().map(|(_, folder)| folder).collect()
}

fn image(label: &str, folders: &[Folder], contents: &[Vec<u8>]) -> Option<Vec<u8>> {
    let all = [Names::RockRidge, Names::Joliet];
    let tables: Vec<usize> = all
        .iter()
        .map(|names| path_table(folders, None, *names, u32::to_le_bytes).map(|table| table.len()))
        .collect::<Option<_>>()?;
    let mut sector = SYSTEM_AREA + 3;
    let mut table_places = Vec::new();
    for size in &tables {
        for _ in 0..2 {
            table_places.push(sector);
            sector += size.div_ceil(SECTOR);
        }
    }
    let mut places: Vec<Places> = Vec::new();
    for names in all {
        let mut list = Vec::new();
        for folder in 0..folders.len() {
            let size = records(folders, folder, None, names)?.len();
            list.push((sector, size));
            sector += size / SECTOR;
        }
        places.push(Places { folders: list, files: Vec::new() });
    }
    let mut files = Vec::new();
    for content in contents {
        files.push((sector, content.len()));
        sector += content.len().div_ceil(SECTOR);
    }
    if sector.checked_mul(SECTOR)? > IMAGE_MAX {
        return None;
    }
    places.iter_mut().for_each(|one| one.files.clone_from(&files));
    let mut image = vec![0; sector * SECTOR];
    let mut put = |place: usize, bytes: &[u8]| image[place * SECTOR..][..bytes.len()].copy_from_slice(bytes);
    for (index, names) in all.into_iter().enumerate() {
        let tables_at = [table_places[2 * index], table_places[2 * index + 1]];
        let volume = volume(label, sector, tables[index], tables_at, places[index].folders[0], names)?;
        put(SYSTEM_AREA + index, &volume);
        put(tables_at[0], &path_table(folders, Some(&places[index]), names, u32::to_le_bytes)?);
        put(tables_at[1], &path_table(folders, Some(&places[index]), names, u32::to_be_bytes)?);
        for folder in 0..folders.len() {
            let at = places[index].folders[folder].0;
            put(at, &records(folders, folder, Some(&places[index]), names)?);
        }
    }
    put(SYSTEM_AREA + 2, b"\xffCD001\x01");
    for (content, (at, _)) in contents.iter().zip(&files) {
        put(*at, content);
    }
    Some(image)
}

fn number(value: usize) -> Option<u32> {
    u32::try_from(value).ok()
}

/// A number of four bytes in both orders.
fn both(value: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_be_bytes());
    bytes
}

/// A number of two bytes in both orders.
fn both_short(value: u16) -> [u8; 4] {
    let (low, high) = (value.to_le_bytes(), value.to_be_bytes());
    [low[0], low[1], high[0], high[1]]
}

/// Letters as a tree has them.
fn letters(text: &str, names: Names) -> Vec<u8> {
    match names {
        Names::RockRidge => text.as_bytes().to_vec(),
        Names::Joliet => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    }
}

/// A volume descriptor (ECMA-119 8.4 and 8.5).
fn volume(
    label: &str,
    sectors: usize,
    table: usize,
    tables: [usize; 2],
    root: (usize, usize),
    names: Names,
) -> Option<Vec<u8>> {
    let mut sector = vec![0; SECTOR];
    sector[0] = if names == Names::Joliet { 2 } else { 1 };
    sector[1..7].copy_from_slice(b"CD001\x01");
    let blank = |range: &mut [u8]| {
        for (index, byte) in range.iter_mut().enumerate() {
            *byte = if names == Names::Joliet && index % 2 == 0 { 0 } else { b' ' };
        }
    };
    blank(&mut sector[8..72]);
    // Names of a set, of people and of programs: none.
    blank(&mut sector[190..702]);
    blank(&mut sector[702..813]);
    let label = letters(label, names);
    let shown = label.len().min(32);
    sector[40..40 + shown].copy_from_slice(&label[..shown]);
    sector[80..88].copy_from_slice(&both(number(sectors)?));
    if names == Names::Joliet {
        sector[88..88 + JOLIET.len()].copy_from_slice(JOLIET);
    }
    sector[120..124].copy_from_slice(&both_short(1));
    sector[124..128].copy_from_slice(&both_short(1));
    sector[128..132].copy_from_slice(&both_short(2048));
    sector[132..140].copy_from_slice(&both(number(table)?));
    sector[140..144].copy_from_slice(&number(tables[0])?.to_le_bytes());
    sector[148..152].copy_from_slice(&number(tables[1])?.to_be_bytes());
    sector[156..190].copy_from_slice(&record(&[0], Some(root), true, &[])?);
    for date in 0..4 {
        sector[813 + 17 * date..][..16].copy_from_slice(b"0000000000000000");
    }
    sector[881] = 1;
    Some(sector)
}

/// A path table (9.4), numbers in one order.
fn path_table(
    folders: &[Folder],
    places: Option<&Places>,
    names: Names,
    order: fn(u32) -> [u8; 4],
) -> Option<Vec<u8>> {
    let mut table = Vec::new();
    for (index, folder) in folders.iter().enumerate() {
        let name = if index == 0 { vec![0] } else { folder_name(index, folder, names) };
        let place = places.map_or(0, |places| places.folders[index].0);
        let parent = order(number(folder.parent + 1)?);
        // The low half of the number, wherever that order has it.
        let parent = if order(1)[0] == 1 { [parent[0], parent[1]] } else { [parent[2], parent[3]] };
        u16::try_from(folder.parent + 1).ok()?;
        table.extend([u8::try_from(name.len()).ok()?, 0]);
        table.extend(order(number(place)?));
        table.extend(parent);
        table.extend(&name);
        if name.len() % 2 == 1 {
            table.push(0);
        }
    }
    Some(table)
}

/// Names of folders without Rock Ridge are numbers: these have any letters.
fn folder_name(number: usize, folder: &Folder, names: Names) -> Vec<u8> {
    match names {
        Names::RockRidge => format!("D{number:07}").into_bytes(),
        Names::Joliet => letters(&folder.name, names),
    }
}

/// The records of a folder in whole sectors; no record crosses from one to the next.
fn records(folders: &[Folder], index: usize, places: Option<&Places>, names: Names) -> Option<Vec<u8>> {
    let folder = &folders[index];
    let folder_at = |index: usize| places.map(|places| places.folders[index]);
    let rock = names == Names::RockRidge;
    let mut own = Vec::new();
    if rock {
        if index == 0 {
            own.extend(b"SP\x07\x01\xbe\xef\x00");
        }
        own.extend(mode(FOLDER_MODE));
        if index == 0 {
            own.extend(b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A");
        }
    }
    let above = if rock { mode(FOLDER_MODE) } else { Vec::new() };
    let mut all = vec![
        record(&[0], folder_at(index), true, &own)?,
        record(&[1], folder_at(folder.parent), true, &above)?,
    ];
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, child) in &folder.folders {
        let extra = if rock { [mode(FOLDER_MODE), rock_ridge_name(name)?].concat() } else { Vec::new() };
        let id = folder_name(*child, &folders[*child], names);
        entries.push((id.clone(), record(&id, folder_at(*child), true, &extra)?));
    }
    for (name, file) in &folder.files {
        let extra = if rock { [mode(FILE_MODE), rock_ridge_name(name)?].concat() } else { Vec::new() };
        let id = match names {
            Names::RockRidge => format!("F{file:07}.;1").into_bytes(),
            Names::Joliet => letters(&format!("{name};1"), names),
        };
        let place = places.map(|places| places.files[*file]);
        entries.push((id.clone(), record(&id, place, false, &extra)?));
    }
    entries.sort();
    all.extend(entries.into_iter().map(|(_, record)| record));
    let mut bytes: Vec<u8> = Vec::new();
    for record in all {
        let used = bytes.len() % SECTOR;
        if used + record.len() > SECTOR {
            bytes.resize(bytes.len() + SECTOR - used, 0);
        }
        bytes.extend(record);
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    Some(bytes)
}

/// A directory record (9.1). `place` is a sector and a size in bytes; a folder's is whole sectors.
fn record(id: &[u8], place: Option<(usize, usize)>, folder: bool, extra: &[u8]) -> Option<Vec<u8>> {
    let (sector, size) = place.unwrap_or_default();
    let mut record = vec![0, 0];
    record.extend(both(number(sector)?));
    record.extend(both(number(size)?));
    // 1 January 1970.
    record.extend([70, 1, 1, 0, 0, 0, 0]);
    record.extend([if folder { 2 } else { 0 }, 0, 0]);
    record.extend(both_short(1));
    record.push(u8::try_from(id.len()).ok()?);
    record.extend(id);
    if id.len().is_multiple_of(2) {
        record.push(0);
    }
    record.extend(extra);
    if record.len() % 2 == 1 {
        record.push(0);
    }
    record[0] = u8::try_from(record.len()).ok()?;
    Some(record)
}

/// Rock Ridge's `PX`: mode, one link, root.
fn mode(mode: u32) -> Vec<u8> {
    let mut entry = b"PX\x24\x01".to_vec();
    for value in [mode, 1, 0, 0] {
        entry.extend(both(value));
    }
    entry
}

/// Rock Ridge's `NM`.
fn rock_ridge_name(name: &str) -> Option<Vec<u8>> {
    let length = u8::try_from(name.len() + 5).ok()?;
    Some([&[b'N', b'M', length, 1, 0], name.as_bytes()].concat())
}
