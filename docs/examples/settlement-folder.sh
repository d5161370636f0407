#!/bin/sh
# A program for settlement.command of gpufaird (the owner) and gpufair (the renter), for payments that a person makes by bank transfer.
#
#   command = ["/usr/local/bin/settlement-folder.sh", "/srv/gpufair-payments", "IBAN XX00 0000, Erika Muster"]
#
# The folder must be writable for settlement.user. As the owner you find one file a payment in open/ with what is to come, named by its
# reference. When it has come, move the file to paid/: `mv open/gf-1a2b3c4d5e6f7081 paid/`. Within minutes both sides sign for it.
# As the renter you find the invoices to be paid in topay/; move each to sent/ once you have paid it.
#
# It needs nothing but a POSIX shell. A daemon that has crashed asks again with the same key: every name follows from that, so there is
# never a second invoice or payment. docs/settlement.md has the contract.
set -eu
umask 022
dir=$1
account=${2:-}
read -r line
# Of the request only fields without escapes are needed; others do not fit and come out empty.
field() { printf '%s\n' "$line" | sed -n 's/.*[{,]"'"$1"'":"\([A-Za-z0-9._:+-]*\)".*/\1/p'; }
short=$(printf %.16s "$(field key)")

case $(field action) in
invoice)
	name=gf-$short
	mkdir -p "$dir/open" "$dir/paid"
	if [ ! -e "$dir/open/$name" ] && [ ! -e "$dir/paid/$name" ]; then
		method=$(printf '%s\n' "$line" | sed -n 's/.*"methods":\["\([A-Za-z0-9._:+-]*\)".*/\1/p') # the first of settlement.methods
		printf 'from %s\nby %s\namount %s %s\ndue %s\n' "$(field peer)" "${method:-manual}" "$(field amount)" "$(field unit)" "$(field due)" >"$dir/$name.part"
		mv "$dir/$name.part" "$dir/open/$name"
	fi
	for file in "$dir/open/$name" "$dir/paid/$name"; do
		if [ -f "$file" ]; then method=$(sed -n 's/^by //p' "$file"); fi
	done
	printf '{"reference":"%s","method":"%s","pay":"%s"}\n' "$name" "$method" "$(printf %s "$account" | tr -d '"\\')"
	;;
check)
	# With "claimed" these are a renter's own words: only plain ones are looked for, and no path. The file says from whom it must come, and how.
	name=$(field reference)
	case $name in '' | .*) echo '{"state":"open"}' && exit ;; esac
	amount=$(field amount)
	want=$(printf 'from %s\nby %s\namount %s %s' "$(field peer)" "$(field method)" "$amount" "$(field unit)")
	if [ -f "$dir/paid/$name" ] && [ "$(grep -v '^due ' "$dir/paid/$name")" = "$want" ]; then
		printf '{"state":"paid","amount":"%s"}\n' "$amount"
	else
		echo '{"state":"open"}'
	fi
	;;
pay)
	name=$short
	mkdir -p "$dir/topay" "$dir/sent"
	if [ -e "$dir/sent/$name" ]; then
		echo '{"state":"paid"}'
		exit
	fi
	[ -e "$dir/topay/$name" ] || { printf '%s\n' "$line" >"$dir/$name.part" && mv "$dir/$name.part" "$dir/topay/$name"; }
	echo '{"state":"open"}'
	;;
*)
	echo "this program knows no such action" >&2
	exit 1
	;;
esac
