//! Tests of the real name server: which updates it accepts and rejects, and every way in which the tests read it.

use testbed::nameserver::{Nameserver, Resolver};

#[test]
fn a_signed_update_is_visible_at_once_and_changes_nothing_else() {
    let nameserver = Nameserver::start("example.com").unwrap();
    let (records, serial) = (nameserver.records().unwrap(), nameserver.serial().unwrap());
    assert_eq!(nameserver.query("www.example.com", "A").unwrap(), ["192.0.2.80"]);
    assert_eq!(nameserver.query("www.example.com", "TXT").unwrap(), ["made by a person"]);
    assert_eq!(nameserver.query("www.example.com", "AAAA").unwrap(), Vec::<String>::new());
    assert_eq!(nameserver.query("hello.example.com", "A").unwrap(), Vec::<String>::new());

    let update = "prereq nxdomain hello.example.com
update add hello.example.com 2 A 203.0.113.11
update add hello.example.com 2 A 203.0.113.10
update add hello.example.com 2 AAAA 2001:db8::10";
    nameserver.nsupdate(update).unwrap();
    assert_eq!(nameserver.query("hello.example.com", "A").unwrap(), ["203.0.113.10", "203.0.113.11"]);
    assert_eq!(nameserver.query("hello.example.com", "AAAA").unwrap(), ["2001:db8::10"]);
    assert_eq!(
        nameserver.serial().unwrap(),
        serial + 1,
        "an update with several records must raise the serial by one"
    );
    let mut expected = records;
    expected.extend([
        "hello.example.com. 2 IN A 203.0.113.10".to_owned(),
        "hello.example.com. 2 IN A 203.0.113.11".to_owned(),
        "hello.example.com. 2 IN AAAA 2001:db8::10".to_owned(),
    ]);
    expected.sort();
    assert_eq!(nameserver.records().unwrap(), expected);

    let refused = nameserver.nsupdate(update).unwrap_err().to_string();
    assert!(refused.contains("YXDOMAIN"), "{refused}");
    assert_eq!(nameserver.records().unwrap(), expected);
}

#[test]
fn an_update_with_a_wrong_secret_or_for_another_zone_is_refused() {
    let nameserver = Nameserver::start("example.com").unwrap();
    let serial = nameserver.serial().unwrap();
    let update = "update add hello.example.com 2 A 203.0.113.10";
    let wrong = nameserver
        .nsupdate(&format!("key hmac-sha256:{} bm90IHRoZSBzZWNyZXQ=\n{update}", nameserver.key_name()))
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("BADSIG") || wrong.contains("NOTAUTH"), "{wrong}");
    let elsewhere = nameserver.nsupdate("zone example.org\nupdate add www.example.org 2 A 203.0.113.10");
    assert!(elsewhere.unwrap_err().to_string().contains("NOTAUTH"));
    assert!(Resolver::new(nameserver.address()).unwrap().ask("www.example.org", "A").is_err());
    assert_eq!(nameserver.serial().unwrap(), serial);
}

#[test]
fn the_keys_of_both_controllers_can_update_the_zone() {
    let nameserver = Nameserver::start("example.com").unwrap();
    for (at, environment) in [nameserver.environment(), nameserver.other_environment()].iter().enumerate() {
        let [(_, server), (_, key), (_, secret)] = &environment[..] else { panic!("{environment:?}") };
        assert_eq!(*server, nameserver.address().to_string());
        let name = format!("by-{at}.example.com");
        let update = format!("key hmac-sha256:{key} {secret}\nupdate add {name} 2 A 203.0.113.10");
        nameserver.nsupdate(&update).unwrap();
        assert_eq!(nameserver.query(&name, "A").unwrap(), ["203.0.113.10"]);
    }
    assert_ne!(nameserver.environment(), nameserver.other_environment());
}

#[test]
fn a_resolver_never_sees_half_an_update() {
    const SWAPS: usize = 50;
    let nameserver = Nameserver::start("example.com").unwrap();
    nameserver.nsupdate("update add hello.example.com 2 A 203.0.113.10").unwrap();
    let address = nameserver.address();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let queries = std::thread::scope(|scope| {
        let querying = scope.spawn(|| {
            let (mut resolver, mut queries) = (Resolver::new(address).unwrap(), 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(resolver.ask("hello.example.com", "A").unwrap().len(), 1);
                queries += 1;
            }
            queries
        });
        for swap in 0..SWAPS {
            let (old, new) = (10 + swap % 2, 10 + (swap + 1) % 2);
            let update = format!(
                "prereq yxrrset hello.example.com A 203.0.113.{old}
update delete hello.example.com A 203.0.113.{old}
update add hello.example.com 2 A 203.0.113.{new}"
            );
            nameserver.nsupdate(&update).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        querying.join().unwrap()
    });
    println!("{queries} queries during {SWAPS} updates");
    assert!(queries > SWAPS);
}
