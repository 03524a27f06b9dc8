BEGIN TRANSACTION;
CREATE TABLE charges (
    number integer primary key,
    entry text not null
);
INSERT INTO "charges" VALUES(1,'{"round": 0}');
INSERT INTO "charges" VALUES(2,'{"round": 1}');
INSERT INTO "charges" VALUES(3,'{"round": 2}');
CREATE TABLE inbox (
    sender text not null,
    round integer not null,
    version integer not null,
    returned_by text not null,
    weight text not null,
    frame blob not null,
    primary key (sender, round, returned_by)
);
INSERT INTO "inbox" VALUES('south',2,1,'','1/2',X'6672616D652032');
CREATE TABLE outbox (
    receiver text not null,
    round integer not null,
    version integer not null,
    weight text not null,
    sha256 text not null,
    frame blob not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    primary key (receiver, round)
);
INSERT INTO "outbox" VALUES('south',2,1,'1/2','6ad5018336b83bb247f98cbb2e13cec929abfcbff92d1b3816a319a22fb112b7',X'6672616D652032',0,2,'d93e424772f3839b',11);
CREATE TABLE peers (
    name text primary key,
    epoch integer not null default 0,
    boot integer not null default 0,
    tag text not null default '',
    clock integer not null default 0,
    round integer not null default 0,
    state text not null default 'active',
    accepted text not null default '',
    version integer not null default 0,
    before integer not null default 0
) without rowid;
INSERT INTO "peers" VALUES('south',0,1,'91ad64813febb4bb',10,3,'active','',1,0);
CREATE TABLE site (
    one integer primary key check (one = 1),
    federation text not null,
    name text not null,
    epoch integer not null,
    boot integer not null,
    tag text not null,
    clock integer not null,
    round integer not null,
    phase text not null,
    state text not null,
    weight text not null,
    mass blob,
    learner text not null,
    budget text not null,
    since integer not null
);
INSERT INTO "site" VALUES(1,'heart/0123456789abcdef','north',0,2,'d93e424772f3839b',12,2,'released','active','1/2',X'6B6570742032','round-000002.safetensors','5.0',0);
CREATE TABLE verdicts (
    version integer not null,
    round integer not null,
    sender text not null,
    sha256 text not null,
    outcome text not null,
    reason text not null,
    primary key (version, round, sender)
) without rowid;
INSERT INTO "verdicts" VALUES(1,0,'south','40db78ae029df9f395c8fcd445f1625e2e7bf22e0bc0dc6182ae62fee82319f0','stored','');
INSERT INTO "verdicts" VALUES(1,1,'south','56f5a971b3594642a6a1c07ed7b8a1467240b578ecdbc8bf8f9189e7a1b219bf','stored','');
INSERT INTO "verdicts" VALUES(1,2,'south','6ad5018336b83bb247f98cbb2e13cec929abfcbff92d1b3816a319a22fb112b7','stored','');
CREATE TABLE written_off (
    receiver text not null,
    round integer not null,
    weight text not null
);
INSERT INTO "written_off" VALUES('east',1,'1/4');
COMMIT;
pragma user_version=2;
