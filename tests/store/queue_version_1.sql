BEGIN TRANSACTION;
CREATE TABLE acknowledged (
	primary_server TEXT NOT NULL, 
	"database" TEXT NOT NULL, 
	incarnation INTEGER NOT NULL, 
	sequence INTEGER NOT NULL, 
	PRIMARY KEY (primary_server, "database", incarnation)
)
 WITHOUT ROWID

;
INSERT INTO "acknowledged" VALUES('mx1.west.example','11111111-1111-4111-8111-111111111111',3,5);
CREATE TABLE asker (
	server TEXT NOT NULL, 
	asked_at INTEGER NOT NULL, 
	PRIMARY KEY (server)
);
INSERT INTO "asker" VALUES('mx1.west.example',1772366400123456);
CREATE TABLE "database" (
	id INTEGER NOT NULL, 
	"database" TEXT NOT NULL, 
	created_at INTEGER NOT NULL, 
	incarnation INTEGER NOT NULL, 
	began INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	internal_id INTEGER NOT NULL, 
	sequence INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "database" VALUES(1,'99999999-9999-4999-8999-999999999999',1772366400123456,1,1,29,17,3);
CREATE TABLE discard (
	sequence INTEGER NOT NULL, 
	asker TEXT NOT NULL, 
	asker_database TEXT NOT NULL, 
	message_id TEXT NOT NULL, 
	status TEXT NOT NULL, 
	ordinals TEXT NOT NULL, 
	created_at INTEGER NOT NULL, 
	PRIMARY KEY (sequence)
);
INSERT INTO "discard" VALUES(1,'mx1.west.example','11111111-1111-4111-8111-111111111111','00000005-0000-4000-8000-000000000000','delivered','1',1772366400123456);
INSERT INTO "discard" VALUES(2,'mx1.west.example','11111111-1111-4111-8111-111111111111','00000007-0000-4000-8000-000000000000','delivered','',1772366400123456);
INSERT INTO "discard" VALUES(3,'mx1.west.example','11111111-1111-4111-8111-111111111111','0000000f-0000-4000-8000-000000000000','released','',1772366400123456);
CREATE TABLE listing (
	server TEXT NOT NULL, 
	message INTEGER NOT NULL, 
	PRIMARY KEY (server, message)
)
 WITHOUT ROWID

;
INSERT INTO "listing" VALUES('mx1.west.example',1);
INSERT INTO "listing" VALUES('mx1.west.example',2);
INSERT INTO "listing" VALUES('mx1.west.example',4);
INSERT INTO "listing" VALUES('mx1.west.example',5);
INSERT INTO "listing" VALUES('mx1.west.example',6);
INSERT INTO "listing" VALUES('mx1.west.example',16);
INSERT INTO "listing" VALUES('mx1.west.example',17);
CREATE TABLE message (
	internal_id INTEGER NOT NULL, 
	message_id TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	arrived_at INTEGER NOT NULL, 
	envelope TEXT NOT NULL, 
	recipients_count INTEGER NOT NULL, 
	role TEXT NOT NULL, 
	ownership INTEGER NOT NULL, 
	placement INTEGER NOT NULL, 
	number_database TEXT NOT NULL, 
	done TEXT NOT NULL, 
	primary_server TEXT NOT NULL, 
	primary_database TEXT NOT NULL, 
	asked TEXT NOT NULL, 
	handed INTEGER NOT NULL, 
	copies TEXT NOT NULL, 
	is_placed INTEGER NOT NULL, 
	due_at INTEGER, 
	keep_until INTEGER NOT NULL, 
	remember_until INTEGER NOT NULL, 
	expires_at INTEGER, 
	is_decided INTEGER NOT NULL, 
	is_promoted INTEGER NOT NULL, 
	promoted_from TEXT NOT NULL, 
	is_shadow_side INTEGER NOT NULL, 
	is_awaited INTEGER NOT NULL, 
	deaths_count INTEGER NOT NULL, 
	set_aside_reason TEXT NOT NULL, 
	retries_count INTEGER NOT NULL, 
	segment INTEGER, 
	"offset" INTEGER, 
	size INTEGER, 
	sha256 BLOB, 
	PRIMARY KEY (internal_id), 
	UNIQUE (message_id)
);
INSERT INTO "message" VALUES(1,'00000001-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,NULL,1772712000123456,1772712000123456,NULL,0,0,'',0,0,0,'',0,1,0,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(2,'00000002-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,1772366400123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',0,1,25,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(3,'00000003-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'',0,1772452800123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',0,1,50,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(4,'00000004-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 1',1,1772366400123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',0,1,75,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(5,'00000005-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example","user2@corp.example","user3@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',3,'primary',1,1,'99999999-9999-4999-8999-999999999999','1','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,1772366460123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',2,1,100,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(6,'00000006-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,1772366460123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',1,1,125,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(7,'00000007-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'delivered',1,1,'99999999-9999-4999-8999-999999999999','1','','','',0,'',0,NULL,1772539200123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,1,150,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(8,'00000008-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'delivered',1,1,'99999999-9999-4999-8999-999999999999','1','','','',0,'',0,NULL,1772539200123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,1,175,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(9,'00000009-0000-4000-8000-000000000000','dsn',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'',0,1772366400123456,1772712000123456,1772712000123456,NULL,1,0,'',0,1,0,'',0,1,200,5,X'70888CB04CAD2F8703D499FBEC1F94C41B94104847B6FB4AD148F3BDDB6D8128');
INSERT INTO "message" VALUES(10,'0000000a-0000-4000-8000-000000000000','shadow',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'shadow',1,1,'11111111-1111-4111-8111-111111111111','','mx1.west.example','11111111-1111-4111-8111-111111111111','',0,'',0,NULL,1772712000123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,1,205,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(11,'0000000b-0000-4000-8000-000000000000','shadow',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'shadow',1,1,'11111111-1111-4111-8111-111111111111','','mx1.west.example','11111111-1111-4111-8111-111111111111','',1,'',0,NULL,1772712000123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,1,230,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(12,'0000000c-0000-4000-8000-000000000000','shadow',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'delivered',1,1,'11111111-1111-4111-8111-111111111111','1','','','',0,'',0,NULL,1772539200123456,1772712000123456,1772712000123456,1,0,'',1,0,0,'',0,1,255,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(13,'0000000d-0000-4000-8000-000000000000','shadow',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'11111111-1111-4111-8111-111111111111','','','','',0,'',0,1772366400123456,1772712000123456,1772712000123456,NULL,1,1,'mx1.west.example',0,0,0,'',0,1,280,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(14,'0000000e-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'shadow',1,1,'99999999-9999-4999-8999-999999999999','','mx2.west.example','22222222-2222-4222-8222-222222222222','',0,'',0,NULL,1772712000123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,1,305,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(15,'0000000f-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'released',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,NULL,1772712000123456,1772712000123456,1772712000123456,1,0,'',0,0,0,'',0,NULL,NULL,NULL,NULL);
INSERT INTO "message" VALUES(16,'00000010-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'set-aside',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,NULL,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'poison: died 3 times',0,1,355,25,X'51AE8AAC4C8CCD22EC5F71832008F35B6E9CC49B4E6FBE726C97B5F97C4C353E');
INSERT INTO "message" VALUES(17,'00000011-0000-4000-8000-000000000000','client',1772366400123456,'["sender@elsewhere.example",["user1@corp.example"],1772366400123456,"7BIT",0,null,null,"192.0.2.1","client.example","inbound","<1@elsewhere.example>","hello"]',1,'primary',1,1,'99999999-9999-4999-8999-999999999999','','','','',0,'mx1.west.example 11111111-1111-4111-8111-111111111111 0',0,1772366400123456,1772712000123456,1772712000123456,NULL,1,0,'',0,0,0,'',0,0,4294967297,1500000,X'65BED38A28CADDA4FA793C07E9350E8EC83B7E59C447AC37BC296F48A960B77D');
CREATE TABLE peer (
	server TEXT NOT NULL, 
	"database" TEXT NOT NULL, 
	incarnation INTEGER NOT NULL, 
	began INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	heard_at INTEGER, 
	is_forgotten INTEGER NOT NULL, 
	PRIMARY KEY (server)
);
INSERT INTO "peer" VALUES('mx1.west.example','11111111-1111-4111-8111-111111111111',1,1,10,1772366400123456,0);
CREATE TABLE peer_database (
	"database" TEXT NOT NULL, 
	server TEXT NOT NULL, 
	PRIMARY KEY ("database")
);
INSERT INTO "peer_database" VALUES('99999999-9999-4999-8999-999999999999','mx1.east.example');
INSERT INTO "peer_database" VALUES('11111111-1111-4111-8111-111111111111','mx1.west.example');
CREATE TABLE retry (
	message INTEGER NOT NULL, 
	next_hop TEXT NOT NULL, 
	ordinals TEXT NOT NULL, 
	failures_count INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	first_failed_at INTEGER NOT NULL, 
	attempts_next_at INTEGER NOT NULL, 
	last_reply TEXT NOT NULL, 
	delay_notified INTEGER NOT NULL, 
	PRIMARY KEY (message, next_hop)
)
 WITHOUT ROWID

;
INSERT INTO "retry" VALUES(5,'one.example:25','2',1,'connection',1772366400123456,1772366460123456,'421 4.4.1 no',0);
INSERT INTO "retry" VALUES(5,'two.example:25','3',1,'message',1772366400123456,1772366460123456,'451 4.3.0 later',0);
INSERT INTO "retry" VALUES(6,'one.example:25','1',1,'connection',1772366400123456,1772366460123456,'421 4.4.1 no',0);
CREATE TABLE segment (
	segment INTEGER NOT NULL, 
	pinned_count INTEGER NOT NULL, 
	keep_until INTEGER NOT NULL, 
	first_id INTEGER NOT NULL, 
	last_id INTEGER NOT NULL, 
	PRIMARY KEY (segment)
);
INSERT INTO "segment" VALUES(1,12,1772539200123456,1,16);
CREATE TABLE shadow_queue (
	number INTEGER NOT NULL, 
	primary_server TEXT NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (primary_server)
);
INSERT INTO "shadow_queue" VALUES(1,'mx1.west.example');
INSERT INTO "shadow_queue" VALUES(2,'mx2.west.example');
CREATE TABLE waiting (
	id INTEGER NOT NULL, 
	side TEXT NOT NULL, 
	more_sides TEXT NOT NULL, 
	asker TEXT NOT NULL, 
	asker_database TEXT NOT NULL, 
	message_id TEXT NOT NULL, 
	status TEXT NOT NULL, 
	ordinals TEXT NOT NULL, 
	created_at INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "waiting" VALUES(1,'00000009-0000-4000-8000-000000000000','','mx1.west.example','11111111-1111-4111-8111-111111111111','00000008-0000-4000-8000-000000000000','delivered','',1772366400123456);
CREATE INDEX message_unplaced ON message (role, is_placed) WHERE role = 'primary' AND is_placed = 0 AND is_decided = 1;
CREATE INDEX message_shadow ON message (role, primary_server, primary_database) WHERE role = 'shadow';
CREATE INDEX message_safety_net ON message (role, is_shadow_side, keep_until) WHERE role = 'delivered';
CREATE INDEX message_set_aside ON message (role) WHERE role = 'set-aside';
CREATE INDEX message_handed ON message (handed, role, primary_server, primary_database) WHERE role = 'shadow' AND handed = 1;
CREATE INDEX message_due ON message (role, due_at) WHERE role = 'primary';
CREATE INDEX message_expires ON message (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX retry_next_hop ON retry (next_hop, message);
CREATE INDEX discard_asker ON discard (asker, sequence);
CREATE INDEX waiting_side ON waiting (side);
COMMIT;
