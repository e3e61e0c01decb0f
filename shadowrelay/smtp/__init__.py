"""SMTP over sockets: the receiver, the link to peers, delivery to next hops. Only here aiosmtpd and aiosmtplib are known."""
