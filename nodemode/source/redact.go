package source

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

// Redact returns a source's address without its password, query and fragment,
// and over http without its user either, which may be a token.
func Redact(where string) string {
	scheme, rest, isURL := strings.Cut(where, "://")
	u, err := url.Parse(where)
	switch {
	case !isURL:
		return where
	case err != nil:
		// Where the secrets are cannot be told; they end before the last @.
		return scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
	}
	u.RawQuery, u.Fragment = "", ""
	if strings.HasPrefix(u.Scheme, "http") {
		u.User = nil
	}
	return u.Redacted()
}

// secretsOf are the password, query and fragment of an URL.
func secretsOf(where string) []string {
	u, err := url.Parse(where)
	if err != nil {
		return nil
	}
	password, given := u.User.Password()
	if !given && strings.HasPrefix(u.Scheme, "http") {
		// A user without a password is a token.
		password = u.User.Username()
	}
	return slices.DeleteFunc([]string{password, url.QueryEscape(password), u.RawQuery, u.Fragment}, func(secret string) bool { return secret == "" })
}

// scrub takes the secrets of an URL out of an error's text.
func scrub(err error, where string) error {
	said := err.Error()
	for _, secret := range secretsOf(where) {
		said = strings.ReplaceAll(said, secret, "xxxxx")
	}
	if said == err.Error() {
		return err
	}
	return errors.New(said)
}
