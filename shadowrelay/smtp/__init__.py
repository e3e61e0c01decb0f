"""SMTP over sockets (RFC 5321): receiver, peer links, delivery to next hops. The only package that uses aiosmtpd and aiosmtplib."""
