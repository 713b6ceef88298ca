//! The pool, case by case: what upstream's unit tests hold, and what it got wrong.

use std::time::Duration;

use api::net::pool::{Owner, Pool, Stamp, View, block_of};
use api::net::{Mac, Range};

const WAIT: Duration = Duration::from_secs(300);
const NOW: Duration = Duration::from_secs(1000);

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

/// A pool of its own, with the cursor at the range's start.
fn pool(start: &str, end: &str) -> Pool {
    let range = Range::parse(start, end).unwrap();
    Pool::alone(range, WAIT, range.first().bits())
}

fn vm(name: &str) -> Owner {
    Owner::new(View::Machine, "default", name)
}

fn pod(name: &str) -> Owner {
    Owner::new(View::Pod, "default", name)
}

fn allocate(pool: &mut Pool, owner: &Owner, stamp: Stamp) -> Option<String> {
    let found = pool.find(&[], NOW).ok()?;
    pool.reserve(owner, found, stamp, NOW);
    pool.advance(found);
    Some(found.to_string())
}

#[test]
fn addresses_follow_each_other_and_carry() {
    for (start, end, then) in [
        ("02:00:00:00:00:00", "02:00:00:00:ff:ff", ["02:00:00:00:00:00", "02:00:00:00:00:01"]),
        ("02:00:00:00:00:ff", "02:00:00:00:ff:ff", ["02:00:00:00:00:ff", "02:00:00:00:01:00"]),
        ("02:00:ff:ff:ff:ff", "02:01:00:00:00:00", ["02:00:ff:ff:ff:ff", "02:01:00:00:00:00"]),
    ] {
        let mut pool = pool(start, end);
        for expected in then {
            assert_eq!(allocate(&mut pool, &vm("a"), 1).as_deref(), Some(expected), "{start}");
        }
    }
}

#[test]
fn a_full_pool_is_an_error_until_there_is_room() {
    let mut pool = pool("02:00:00:00:00:fe", "02:00:00:00:01:01");
    for name in ["a", "b", "c", "d"] {
        assert!(allocate(&mut pool, &vm(name), 1).is_some());
    }
    let message = pool.find(&[], NOW).unwrap_err().to_string();
    assert!(
        message.contains("02:00:00:00:00:fe-02:00:00:00:01:01") && message.contains("4 add"),
        "{message}"
    );
    pool.forget(&vm("c"), Some(1));
    assert_eq!(allocate(&mut pool, &vm("e"), 2).as_deref(), Some("02:00:00:00:01:00"));
    assert_eq!(allocate(&mut pool, &vm("f"), 2), None);
}

#[test]
fn a_released_address_comes_back_last() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:02");
    assert_eq!(allocate(&mut pool, &vm("a"), 1).as_deref(), Some("02:00:00:00:00:00"));
    pool.forget(&vm("a"), Some(1));
    for expected in ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:00"] {
        assert_eq!(allocate(&mut pool, &vm("b"), 2).as_deref(), Some(expected));
    }
}

#[test]
fn addresses_in_use_are_not_allocated() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:02");
    pool.observe(&pod("a"), None, vec![mac("02:00:00:00:00:00"), mac("0a:00:00:00:00:00")]);
    assert_eq!(allocate(&mut pool, &vm("a"), 1).as_deref(), Some("02:00:00:00:00:01"));
    assert!(!pool.is_free(mac("0a:00:00:00:00:00")), "in range or not");
}

#[test]
fn one_owner_less_frees_no_address_that_another_has() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:00");
    let one = mac("02:00:00:00:00:00");
    pool.observe(&vm("a"), None, vec![one]);
    pool.observe(&vm("b"), None, vec![one]);
    pool.forget(&vm("a"), None);
    assert!(pool.find(&[], NOW).is_err(), "b has it");
    pool.forget(&vm("b"), None);
    assert_eq!(pool.find(&[], NOW).unwrap(), one);
}

#[test]
fn a_machine_its_instance_and_their_pods_are_one_guest() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:00");
    let one = mac("02:00:00:00:00:00");
    let mut launcher = pod("virt-launcher-a-x");
    launcher.guest = Some("a".into());
    let instance = Owner::new(View::Instance, "default", "a");
    let elsewhere = Owner::new(View::Machine, "other", "a");
    pool.observe(&instance, None, vec![one]);
    assert_eq!(pool.other_holder(one, &vm("a")), None);
    assert_eq!(pool.other_holder(one, &launcher), None);
    for other in [vm("b"), pod("a"), elsewhere] {
        assert_eq!(pool.other_holder(one, &other), Some(&instance), "{other}");
    }
}

#[test]
fn promises_are_redeemed_by_their_stamp() {
    let first = mac("02:00:00:00:00:00");
    // Stamp of the object that is seen, what it has, whether the promise of stamp 5 is still kept.
    for (seen, has, kept) in [
        (Some(5), vec![first], true),
        (Some(5), vec![], false),
        (Some(6), vec![], false),
        (Some(4), vec![], true),
        (None, vec![], true),
    ] {
        let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01");
        assert!(allocate(&mut pool, &vm("a"), 5).is_some());
        pool.observe(&vm("a"), seen, has.clone());
        assert_eq!(!pool.is_free(first), kept, "{seen:?} {has:?}");
        pool.forget(&vm("a"), seen);
        let still = seen.is_none_or(|seen| seen < 5);
        assert_eq!(!pool.is_free(first), still, "deleted {seen:?}: a later one of the same name may come");
    }
}

#[test]
fn an_update_keeps_the_old_address_until_the_new_one_is_written() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01");
    let [old, new] = ["02:00:00:00:00:00", "02:00:00:00:00:01"].map(mac);
    pool.observe(&vm("a"), Some(1), vec![old]);
    pool.reserve(&vm("a"), new, 2, NOW);
    assert!(!pool.is_free(old) && !pool.is_free(new));
    // An event that is older than the update.
    pool.observe(&vm("a"), Some(1), vec![old]);
    assert!(!pool.is_free(old) && !pool.is_free(new));
    pool.observe(&vm("a"), Some(2), vec![new]);
    assert!(pool.is_free(old) && !pool.is_free(new));
}

#[test]
fn an_unconfirmed_reservation_expires() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:00");
    for owner in [vm("a"), pod("a"), Owner::unnamed(View::Pod, "default", "a-", "uid")] {
        assert!(allocate(&mut pool, &owner, 1).is_some());
        assert_eq!(pool.expire(NOW + WAIT - Duration::from_secs(1)), 0);
        assert_eq!(pool.expire(NOW + WAIT), 1);
        assert_eq!(pool.held(), 0, "{owner}");
    }
    // Promised again, it is kept from then on.
    let one = mac("02:00:00:00:00:00");
    pool.reserve(&vm("a"), one, 1, NOW);
    pool.reserve(&vm("a"), one, 2, NOW + WAIT / 2);
    assert_eq!(pool.expire(NOW + WAIT), 0);
    assert_eq!(pool.holders(one).count(), 1);
    assert_eq!(pool.expire(NOW + WAIT * 2), 1);
}

#[test]
fn an_object_without_a_name_gets_its_own_when_it_is_seen() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:01");
    let [one, two] = ["02:00:00:00:00:00", "02:00:00:00:00:01"].map(mac);
    pool.reserve(&Owner::unnamed(View::Pod, "default", "web-", "u1"), one, 1, NOW);
    pool.reserve(&Owner::unnamed(View::Pod, "default", "web-", "u2"), two, 1, NOW);
    pool.observe(&pod("web-abc"), Some(0), vec![one]);
    pool.named(&pod("web-abc"), "web-", &[one]);
    assert_eq!(pool.holders(one).collect::<Vec<_>>(), [&pod("web-abc")]);
    pool.forget(&pod("web-abc"), None);
    assert!(pool.is_free(one) && !pool.is_free(two));
}

#[test]
fn holders_absent_from_a_listing_are_dropped_but_reservations_stay() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:00:03");
    let [a, b, c, d] = [0, 1, 2, 3].map(|last| mac(&format!("02:00:00:00:00:0{last}")));
    pool.observe(&vm("a"), None, vec![a]);
    pool.observe(&vm("b"), None, vec![b]);
    pool.observe(&pod("c"), None, vec![c]);
    pool.reserve(&vm("b"), d, 9, NOW);
    pool.begin_listing(View::Machine);
    pool.observe(&vm("a"), None, vec![a]);
    let gone = pool.end_listing(View::Machine);
    assert_eq!(gone.iter().map(|owner| &*owner.name).collect::<Vec<_>>(), ["b"]);
    assert_eq!([a, b, c, d].map(|mac| pool.is_free(mac)), [false, true, false, false]);
}

#[test]
fn editing_the_range_moves_no_block_and_takes_nothing_away() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:01:ff");
    assert!(allocate(&mut pool, &vm("a"), 1).is_some());
    pool.set_range(Range::parse("02:00:00:00:01:10", "02:00:00:00:02:ff").unwrap());
    assert!(!pool.is_free(mac("02:00:00:00:00:00")));
    assert_eq!(allocate(&mut pool, &vm("b"), 1).as_deref(), Some("02:00:00:00:01:10"));
    assert_eq!(pool.free(NOW), 0xf0 - 1, "of the block that is ours and in the new range");
    pool.set_range(Range::parse("02:00:00:00:00:00", "02:00:00:00:00:ff").unwrap());
    assert_eq!(allocate(&mut pool, &vm("c"), 1).as_deref(), Some("02:00:00:00:00:01"));
}

#[test]
fn a_block_that_was_taken_over_is_used_when_it_has_settled() {
    let range = Range::parse("02:00:00:00:00:00", "02:00:00:00:00:ff").unwrap();
    let mut pool = Pool::new(range, WAIT, 0);
    let error = pool.find(&[], NOW).unwrap_err().to_string();
    assert!(error.contains("other replicas"), "{error}");
    pool.add_block(block_of(range.first()), NOW + Duration::from_secs(60));
    let error = pool.find(&[], NOW).unwrap_err().to_string();
    assert!(error.contains("soon"), "{error}");
    assert!(pool.find(&[], NOW + Duration::from_secs(60)).is_ok());
    pool.remove_block(block_of(range.first()));
    assert!(pool.find(&[], NOW * 2).is_err());
}

#[test]
fn blocks_that_could_go() {
    let mut pool = pool("02:00:00:00:00:00", "02:00:00:00:03:ff");
    let first = block_of(mac("02:00:00:00:00:00"));
    assert!(allocate(&mut pool, &vm("a"), 1).is_some());
    pool.add_block(first + 8, NOW * 2);
    pool.add_block(first + 9, NOW);
    for (keep, most, expected) in [
        (0, 9, vec![first + 1, first + 2, first + 3, first + 9]),
        (0, 2, vec![first + 1, first + 2]),
        (300, 9, vec![first + 1, first + 2, first + 9]),
        (1023, 9, vec![first + 9]),
        (u64::MAX, 9, vec![first + 9]),
    ] {
        assert_eq!(pool.spare(keep, most, NOW), expected, "{keep} {most}");
    }
    // A block in quarantine is not released, and dropped reservations are gone.
    pool.add_block(first + 4, NOW * 2);
    pool.set_range(Range::parse("02:00:00:00:00:00", "02:00:00:00:04:ff").unwrap());
    assert!(!pool.spare(0, 9, NOW).contains(&(first + 4)));
    pool.retain_blocks(|block| block == first + 4);
    assert_eq!([first, first + 4].map(|block| pool.has_block(block)), [false, true]);
    assert!(pool.find(&[], NOW).is_err());
}
